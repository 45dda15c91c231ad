"""Where a step's time goes, and where a rank is: one context manager does both for every training loop.

    phases.begin(step)
    with phases("forward"): ...
    rank.events.write("step", ..., **phases.spent())     # {"seconds": {...}, "communication": {...}}

`seconds` are wall time by phase. `communication` are those of them in which this rank waited inside
collectives: a part of `seconds`, never to be added to them, and absent where waits cannot be timed. The mean
of the loss over ranks belongs to the optimizer phase, so its wait is in `communication["optimizer"]`.

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
from components.training.communication import CLOCK


class Phases:
    """The phases of one rank's loop: beat, fault drill, clock."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.step = rank, 0
        self.total: dict[str, float] = defaultdict(float)
        """Seconds of each phase since the start."""
        self._step: dict[str, float] = defaultdict(float)
        self._waited: dict[str, float] = defaultdict(float)
        self._around: str | None = None
        self._began = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """What runs inside is this phase of the current step, and not of the phase around it."""
        around, self._around = self._around, phase
        self.rank.heartbeat.beat(self.step, phase)
        waited, started = CLOCK.seconds, time.perf_counter()
        inject(self.rank.rank, self.step, phase)  # a drill takes the phase's own time
        yield
        spent, waited = time.perf_counter() - started, CLOCK.seconds - waited
        self._add(phase, spent, waited)
        self._around = around
        if around is not None:
            self._add(around, -spent, -waited)
            self.rank.heartbeat.beat(self.step, around)

    def _add(self, phase: str, spent: float, waited: float) -> None:
        self._step[phase] += spent
        self.total[phase] += spent
        self._waited[phase] += waited

    def begin(self, step: int) -> None:
        """A new step starts."""
        self.step, self._began = step, time.perf_counter()
        self._step.clear()
        self._waited.clear()

    @property
    def since_begin(self) -> float:
        """Seconds of the current step so far, those that no phase owns included."""
        return time.perf_counter() - self._began

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase of the current step."""
        return {phase: round(spent, 6) for phase, spent in self._step.items()}

    def spent(self, *phases: str) -> dict[str, dict[str, float]]:
        """Seconds of the current step in some phases, in all when none is named, as fields of an event."""
        seconds = self.seconds()
        told = {"seconds": {name: spent for name, spent in seconds.items() if not phases or name in phases}}
        if CLOCK.runs:
            told["communication"] = {name: round(self._waited[name], 6) for name in told["seconds"]}
        return told
