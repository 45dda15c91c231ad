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

from pydantic import Field

from components.reliability.finding import Confidence, Finding
from components.reliability.heartbeat import PHASES, Beat
from components.reliability.restarts import Budget

STEP_PHASES = {"data", "forward", "backward", "optimizer"}
REMEMBERED_STEPS = 64


class Limits(Budget):
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


def stall(beat: Beat, *, seconds: float, limit: float, tied: int, waiting: int) -> Finding:
    """A job that stands still. `tied` ranks stand where the suspect does, it too; `waiting` are ahead."""
    where, stood = f"{beat.phase} of step {beat.step}", f"for {seconds:.1f} s (limit {limit:.1f} s)"
    confidence: Confidence = "likely" if waiting >= tied else "unclear"
    if tied == 1:
        confidence = "certain"
        ahead = "the other rank is" if waiting == 1 else f"{waiting} other ranks are"
        others = f"; {ahead} ahead and waiting for it" if waiting else ""
        sentence = f"rank {beat.rank} stands in {where} {stood}{others}"
    else:
        sentence = (
            f"{tied} ranks stand in {where} {stood}, {waiting} are ahead; rank {beat.rank} came to rest "
            f"there first ({confidence}: compare the stacks)"
        )
    return Finding(
        kind="stall",
        sentence=sentence,
        rank=beat.rank,
        step=beat.step,
        phase=beat.phase,
        confidence=confidence,
        seconds=seconds,
        advice=_advice(beat.phase, tied),
        figures={"limit_seconds": limit, "tied": tied, "waiting": waiting},
    )


def _advice(phase: str, tied: int) -> str:
    if tied > 1:
        return "ranks in one place and yet no progress: look for two different collectives in `stacks/`."
    if phase == "data":
        return "the storage and the loader of that rank: a blocked read shows in its stack."
    if phase == "start":
        return "its log: a rank that never began waits for a rendezvous, an import or a file."
    return (
        "its stack: in a collective it waits for a rank that has ended; elsewhere the top frame is the cause."
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

    def look(self, beats: Sequence[Beat], now: float) -> Finding | None:
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
        waiting = len(self._places) - len(tied)
        return stall(suspect.beat, seconds=stood, limit=limit, tied=len(tied), waiting=waiting)

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
