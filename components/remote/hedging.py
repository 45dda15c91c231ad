"""A second request for the same bytes when the first is late; whichever answers first is taken.

Pattern: Hedged Read
Problem: one request in a hundred takes fifty times as long; a step that needs hundreds waits for the worst.
Answer: past twice the 95th percentile of answers of its size, ask again and cancel the loser.
Trade-off: some bytes are asked for twice. They are counted in full when asked for, and kept under a share.
Reference: J. Dean and L. A. Barroso, The Tail at Scale, CACM 56(2), 2013.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass

Request = Callable[[], "Future[bytes]"]
REMEMBERED, ENOUGH = 200, 20
SHORTEST_DELAY_SECONDS = 0.005


@dataclass
class Counts:
    """What hedging did in this process."""

    reads: int = 0
    bytes: int = 0
    hedges: int = 0
    won: int = 0
    """Second requests that answered first."""
    duplicate_bytes: int = 0
    """Bytes of second requests, in full, whether or not they were sent before the request was cancelled."""
    denied: int = 0
    """Late reads that stayed alone, since the share of duplicate bytes was used up."""


class Hedger:
    """Reads with a second chance; knows how long answers take and how many bytes were asked for twice."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._seconds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._lock = threading.Lock()

    def read(
        self, request: Request, length: int, *, after: float | None, share: float, timeout: float
    ) -> bytes:
        """The first good answer; when both requests fail, the error of the last."""
        started = time.monotonic()
        with self._lock:
            self.counts.reads += 1
            self.counts.bytes += length
        delay = self.delay(length) if after is None else after
        pending = {request()}
        try:
            done, pending = wait(pending, timeout=min(delay, timeout) if delay else timeout)
            if not done and delay is not None and delay < timeout and self._grants(length, share):
                first = next(iter(pending))
                pending = {first, second := request()}
                content = _first_good(pending, started + timeout)
                with self._lock:
                    self.counts.won += second.done() and not first.done()
            else:
                content = _first_good(done | pending, started + timeout)
        finally:
            for late in pending:
                late.cancel()
        with self._lock:
            self._seconds[_size_class(length)].append(time.monotonic() - started)
        return content

    def delay(self, length: int) -> float | None:
        """Seconds after which an answer of this length is late; None while too few were seen to tell."""
        with self._lock:
            seen = sorted(self._seconds[_size_class(length)])
        if len(seen) < ENOUGH:
            return None
        return max(SHORTEST_DELAY_SECONDS, 2 * seen[int(0.95 * len(seen))])

    def report(self) -> dict[str, int]:
        """The counts, for a record."""
        with self._lock:
            return asdict(self.counts)

    def _grants(self, length: int, share: float) -> bool:
        with self._lock:
            if self.counts.duplicate_bytes + length > share * self.counts.bytes:
                self.counts.denied += 1
                return False
            self.counts.duplicate_bytes += length
            self.counts.hedges += 1
            return True


def _first_good(futures: set[Future[bytes]], deadline: float) -> bytes:
    pending, failed = set(futures), None
    while pending:
        left = max(0.0, deadline - time.monotonic())
        done, pending = wait(pending, timeout=left, return_when=FIRST_COMPLETED)
        if not done:
            raise TimeoutError("no answer in time")
        for one in done:
            if (failed := one.exception()) is None:
                return one.result()
    assert failed is not None
    raise failed


def _size_class(length: int) -> int:
    """Lengths within a factor of four take about as long as each other."""
    return length.bit_length() // 2
