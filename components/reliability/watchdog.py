"""Judges whether a job moves: the last beats of its ranks in, a named suspect out when it stands still.

Pure: it reads no file and no clock, so a thousand ranks and an hour of waiting are a few lines of a test.

Pattern: Phase-Aware Limits
Problem: one timeout for everything is either longer than any outage or shorter than a healthy checkpoint.
Answer: a step may last a few times the median step of this very run; other phases have limits of their own.
Trade-off: the first steps, before there is a median, are watched only loosely.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from components.plugins import Config
from components.reliability.heartbeat import PHASES, Beat

STEP_PHASES = {"data", "forward", "backward", "optimizer"}
REMEMBERED_STEPS = 64


class Limits(Config):
    """How long a rank may stand in one place, and how often a job may be started again."""

    step_factor: float = Field(default=5.0, gt=1)
    """A phase of a step may last this many times the median step of the run."""

    floor_seconds: float = Field(default=10.0, gt=0)
    """However short the steps are, no rank is suspected earlier than this."""

    learn_steps: int = Field(default=5, ge=1)
    """Steps seen before the median counts; until then `first_steps_seconds` holds."""

    first_steps_seconds: float = Field(default=120.0, gt=0)
    """Longest phase of a step before the run's own pace is known."""

    start_seconds: float = Field(default=300.0, gt=0)
    """From launch to the first step: imports, rendezvous, loading a checkpoint."""

    rollout_seconds: float = Field(default=300.0, gt=0)
    """One generation phase."""

    evaluate_seconds: float = Field(default=300.0, gt=0)
    """One evaluation."""

    checkpoint_seconds: float = Field(default=600.0, gt=0)
    """One checkpoint."""

    done_seconds: float = Field(default=60.0, gt=0)
    """From the last step of every rank to the end of the job."""

    poll_seconds: float = Field(default=0.2, gt=0)
    """Time between two looks at the beats."""

    max_restarts: int = Field(default=2, ge=0)
    """How often a job is started again after a crash or a stall."""

    backoff_seconds: float = Field(default=1.0, ge=0)
    """Wait before the first restart; doubles each time."""


@dataclass(frozen=True)
class Stall:
    """A job that stands still, and who is to blame."""

    rank: int
    step: int
    phase: str
    seconds: float
    """How long the suspect has been standing there."""
    limit_seconds: float
    tied: int
    """Ranks that stand in the same place as the suspect, itself counted."""
    waiting: int
    """Ranks that are ahead, and wait in a collective for the suspect."""

    @property
    def confidence(self) -> Literal["certain", "likely", "unclear"]:
        """How sure the name is: one rank behind all others, a few of many, or all in the same place."""
        if self.tied == 1:
            return "certain"
        return "likely" if self.waiting >= self.tied else "unclear"

    @property
    def sentence(self) -> str:
        """The finding, for a log line and a record."""
        where = f"{self.phase} of step {self.step}"
        stood = f"for {self.seconds:.1f} s (limit {self.limit_seconds:.1f} s)"
        if self.tied == 1:
            ahead = "the other rank is" if self.waiting == 1 else f"{self.waiting} other ranks are"
            others = f"; {ahead} ahead and waiting for it" if self.waiting else ""
            return f"rank {self.rank} stands in {where} {stood}{others}"
        return (
            f"{self.tied} ranks stand in {where} {stood}, {self.waiting} are ahead; rank {self.rank} came to "
            f"rest there first ({self.confidence}: compare the stacks)"
        )


@dataclass(frozen=True)
class _Place:
    """Where a rank is, and since when as far as the watchdog saw."""

    beat: Beat
    since: float

    @property
    def progress(self) -> tuple[int, int]:
        return self.beat.step, PHASES.index(self.beat.phase)


class Watchdog:
    """Remembers where each rank was at the last look; times are seconds of any one clock."""

    def __init__(self, limits: Limits, processes: int, now: float) -> None:
        self.limits = limits
        absent = (Beat(rank, 0, 0, "start", 0.0) for rank in range(processes))
        self._places = {beat.rank: _Place(beat, now) for beat in absent}
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._front = (0, now)
        self._steps_seen = 0

    @property
    def median_step(self) -> float | None:
        """Seconds of a step of this run; None before enough were seen."""
        known = self._steps_seen >= self.limits.learn_steps
        return statistics.median(self._step_seconds) if known else None

    def look(self, beats: Sequence[Beat], now: float) -> Stall | None:
        """Take in the last beats; a verdict when the rank that is furthest behind has stood too long."""
        for beat in beats:
            if beat.rank in self._places and self._places[beat.rank].beat != beat:
                self._places[beat.rank] = _Place(beat, now)
        self._learn(now)
        behind = min(place.progress for place in self._places.values())
        tied = [place for place in self._places.values() if place.progress == behind]
        suspect = min(tied, key=lambda place: (place.since, place.beat.at, place.beat.rank))
        stood, limit = now - suspect.since, self.limit(suspect.beat.phase)
        if stood <= limit:
            return None
        beat, waiting = suspect.beat, len(self._places) - len(tied)
        return Stall(beat.rank, beat.step, beat.phase, stood, limit, len(tied), waiting)

    def limit(self, phase: str) -> float:
        """Seconds that a rank may stand in a phase, as far as is known now."""
        if phase not in STEP_PHASES:
            return float(getattr(self.limits, f"{phase}_seconds"))
        median = self.median_step
        if median is None:
            return self.limits.first_steps_seconds
        return max(self.limits.step_factor * median, self.limits.floor_seconds)

    def _learn(self, now: float) -> None:
        """The pace of the rank that is furthest behind; a checkpoint in between does not move the median."""
        before, at = self._front
        step = min(place.beat.step for place in self._places.values())
        if step <= before:
            return
        if before > 0:
            self._step_seconds.append((now - at) / (step - before))
            self._steps_seen += step - before
        self._front = (step, now)
