"""How far something long has come: one line that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import sys
import time
from types import TracebackType
from typing import TextIO

WIDTH = 30
SECONDS_ON_A_TERMINAL, SECONDS_ELSEWHERE = 0.1, 10.0


class Progress:
    """Told the bytes done and those there are; quiet for what is over in a moment."""

    def __init__(self, title: str, stream: TextIO = sys.stderr) -> None:
        self.title, self.stream = title, stream
        self.terminal = stream.isatty()
        self.started = self.told = time.monotonic()
        self.shown = False

    def __call__(self, done: int, total: int) -> None:
        """Say it, unless it was just said."""
        now = time.monotonic()
        if now - self.told < (SECONDS_ON_A_TERMINAL if self.terminal else SECONDS_ELSEWHERE):
            return
        self.told, self.shown = now, True
        self.stream.write(self.line(done, total, now - self.started))
        self.stream.flush()

    def line(self, done: int, total: int, seconds: float) -> str:
        """What is shown of a state."""
        share = done / total if total else 1.0
        rate = done / max(seconds, 1e-9)
        text = (
            f"{self.title} {share:4.0%}  {_size(done)} of {_size(total)}, {_size(rate)}/s, "
            f"{(total - done) / max(rate, 1e-9):.0f} s left"
        )
        if not self.terminal:
            return text + "\n"
        full = round(share * WIDTH)
        return f"\r\x1b[K[{'#' * full}{'.' * (WIDTH - full)}] {text}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """What comes next starts on a clean line."""
        if self.shown and self.terminal:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
        self.shown = False


def _size(count: float) -> str:
    thousands = min(int(math.log10(max(count, 1)) / 3), 4)
    return f"{count / 1000**thousands:.{int(thousands > 1)}f} {('B', 'kB', 'MB', 'GB', 'TB')[thousands]}"
