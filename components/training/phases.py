"""Where a step's time goes, and where a rank is: one context manager does both for every training loop.

Pattern: Step-Time Breakdown
Problem: a slow job shows one number, tokens per second, which does not say what to mend.
Answer: every rank times each phase of each step and says at the same places where it is.
Trade-off: phases that overlap on an accelerator are only told apart when it is waited for between them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from components.jobs import Rank
from components.reliability.faults import inject


class Phases:
    """The phases of one rank's loop: beat, fault drill, clock."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.step = rank, 0
        self.total: dict[str, float] = defaultdict(float)
        """Seconds of each phase since the start."""
        self._step: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """What runs inside is this phase of the current step."""
        self.rank.heartbeat.beat(self.step, phase)
        started = time.perf_counter()
        inject(self.rank.rank, self.step, phase)  # a drill takes the phase's own time
        yield
        self._step[phase] += time.perf_counter() - started
        self.total[phase] += time.perf_counter() - started

    def begin(self, step: int) -> None:
        """A new step starts."""
        self.step = step
        self._step.clear()

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase of the current step."""
        return {phase: round(spent, 6) for phase, spent in self._step.items()}
