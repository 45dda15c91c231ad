"""Beside a job that trains: asks the gates about each new checkpoint, and lets old ones go.

    with Keeper(folder, gates, retention, scratch) as keeper:
        supervise(attempts, launcher, on_progress=keeper)

A call looks and returns; a thread reads. It takes the newest checkpoint that nobody has judged: on one that
is overtaken, the time is better spent on its successor.

Pattern: Attended Training
Problem: gates that are asked at the next restart tell in the morning that the night was trained on a NaN.
Answer: they are asked as checkpoints appear, and a refusal ends the attempt: its memory holds the same.
Trade-off: every checkpoint is read once more while the job runs.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any, Self

from components.checkpoints import retention, state
from components.checkpoints.check import decide
from components.checkpoints.names import newest_first
from components.checkpoints.restore import is_rotten
from components.checkpoints.retention import Retention
from components.errors import GateRefused
from components.plugins import Config

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Between two looks at the folder: it may lie in a store that counts requests."""


class Keeper:
    """Of one folder of checkpoints. Without gates it judges nothing, and then deletes nothing either."""

    def __init__(
        self,
        folder: str,
        gates: Mapping[str, Config],
        keep: Retention,
        scratch: Path,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.folder, self.gates, self.keep, self.scratch = folder, gates, keep, scratch
        self.look_seconds = look_seconds
        self._looked_at = float("-inf")
        self._thread: Thread | None = None
        self._refusal: GateRefused | None = None

    def __call__(self, *_: Any) -> None:
        """Look, at most every so many seconds; GateRefused when a look has found that training went wrong."""
        if self._thread is not None and self._thread.is_alive():
            return
        if (refusal := self._refusal) is not None:
            self._refusal = None
            raise refusal
        if self.gates and time.monotonic() - self._looked_at >= self.look_seconds:
            self._looked_at = time.monotonic()
            self._thread = Thread(target=self._look, name="keeper", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Between attempts, whose start judges and deletes as well: the look that goes on comes to its end.

        What it may refuse stands in the states, and is not held against the attempt that comes next.
        """
        if self._thread is not None:
            self._thread.join()
        self._refusal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def _look(self) -> None:
        try:
            url = self._newest_unjudged()
            if url is not None and self._passes(url):
                retention.apply(self.folder, self.keep)
        except Exception as error:  # a store that is away for a minute; the next look tells
            logger.warning(
                "%s could not be judged just now: %s: %s", self.folder, type(error).__name__, error
            )

    def _newest_unjudged(self) -> str | None:
        """None as well when a newer one is judged already."""
        for url in newest_first(self.folder):
            known = state.read(url)
            if known is not None and known.state == "committed":
                return url
            if known is not None and known.state == "validated":
                return None
        return None

    def _passes(self, url: str) -> bool:
        self.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.scratch) as copy:
            try:
                decide(url, self.gates, scratch=Path(copy), passes=logging.DEBUG)
            except GateRefused as refusal:
                if is_rotten(refusal.verdicts):
                    logger.error(
                        "set aside, and the job goes on, since only the files are wrong: %s", refusal
                    )
                else:
                    self._refusal = refusal
                return False
        return True
