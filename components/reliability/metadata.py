"""What the surroundings of a machine say of it: a file, or an address such as a cloud's metadata service.

AWS answers 404 at `http://169.254.169.254/latest/meta-data/spot/instance-action` until there is a notice,
and asks for a token first (`token_url`: `http://169.254.169.254/latest/api/token`). Google answers TRUE or
FALSE at `http://metadata.google.internal/computeMetadata/v1/instance/preempted`, with `Metadata-Flavor:
Google` among the headers. Slurm, Kubernetes and people can write a file.
"""

from __future__ import annotations

import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from typing import Generic, TypeVar

from components.errors import ConfigError

TOKEN_HEADER = "X-aws-ec2-metadata-token"
TOKEN_SECONDS = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
ANSWER_SECONDS = 2.0
NOTHING = (404, 410)
Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine


def read(place: str, headers: Mapping[str, str] | None = None, token_url: str | None = None) -> str | None:
    """What a file or an address says; None when there is no such file, or the answer is 404.

    OSError when the address does not answer, or with anything else.
    """
    if not place.startswith(("http://", "https://")):
        path = Path(place.removeprefix("file://"))
        return path.read_text() if path.exists() else None
    sent = dict(headers or {})
    if token_url is not None:
        sent[TOKEN_HEADER] = _answer(token_url, TOKEN_SECONDS, method="PUT") or ""
    return _answer(place, sent)


def _answer(url: str, headers: Mapping[str, str], method: str = "GET") -> str | None:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with _direct.open(request, timeout=ANSWER_SECONDS) as answer:
            text: str = answer.read().decode(errors="replace")
            return text
    except urllib.error.HTTPError as error:
        with error:
            if error.code in NOTHING:
                return None
            raise


class Watched(Generic[Answer]):
    """The newest answer of something that may be slow to ask, for a loop that must not wait for it."""

    def __init__(self, ask: Callable[[], Answer | None], every_seconds: float) -> None:
        self.ask, self.every_seconds = ask, every_seconds
        self._answer: Answer | None = None
        self._asked_at = float("-inf")
        self._thread: Thread | None = None
        self._complained = False

    def now(self) -> Answer | None:
        """Ask, and wait for the answer; the last one when there is none, or none that makes sense."""
        self._asked_at = time.monotonic()
        try:
            self._answer = self.ask()
        except (OSError, ConfigError) as error:
            if not self._complained:
                logger.warning("nothing new is known of this machine: %s", error)
            self._complained = True
        return self._answer

    def last(self) -> Answer | None:
        """The newest answer there is; a new one is asked for when it has grown old."""
        resting = self._thread is None or not self._thread.is_alive()
        if resting and time.monotonic() - self._asked_at >= self.every_seconds:
            self._thread = Thread(target=self.now, name="metadata", daemon=True)
            self._thread.start()
        return self._answer
