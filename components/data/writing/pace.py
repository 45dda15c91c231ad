"""How far a long step is and how fast: a line in the log every few seconds, and one at the end."""

from __future__ import annotations

import logging
import time

SPEAK_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Pace:
    """Counts what is done and speaks now and then."""

    def __init__(self, doing: str, total: int, what: str) -> None:
        self._doing, self._total, self._what = doing, total, what
        self._done = self._documents = self._bytes = 0
        self._started_at = self._spoke_at = time.monotonic()

    def tell(self, *, bytes: int, documents: int = 0) -> None:
        """One more is done; `bytes` and `documents` are what it took."""
        self._done += 1
        self._bytes += bytes
        self._documents += documents
        now = time.monotonic()
        if now - self._spoke_at >= SPEAK_SECONDS:
            self._spoke_at = now
            logger.info("%s", self)

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._started_at, 1e-9)
        documents = f"{self._documents / seconds:,.0f} documents/s, " if self._documents else ""
        return (
            f"{self._doing} {self._done:,} of {self._total:,} {self._what}, "
            f"{documents}{self._bytes / 1e6 / seconds:.1f} MB/s"
        )
