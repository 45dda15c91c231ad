"""Judges whether a job moves: the last beats of its ranks in, a named suspect out when it stands still.

Pure: it reads no file and no clock, so a thousand ranks and an hour of waiting are a few lines of a test.

Time that a rank waited for a core on a crowded machine does not count: it is ready, others run. And whoever
acts on a verdict looks again once the evidence is there; a rank that has moved meanwhile is excused.

Pattern: Phase-Aware Limits
Problem: one timeout for everything is either longer than any outage or shorter than a healthy checkpoint.
Answer: a step may last a few times the median step of this very run, an evaluation or rollout a few times
the longest of this run; each phase has a limit of its own until there is something to learn from.
Trade-off: the first steps, before there is a median, are watched only loosely; a phase that is honestly slow
for once, as a read that is tried again, needs a higher floor or costs a restart.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from components.reliability.finding import Confidence, Finding
from components.reliability.heartbeat import PHASES, Beat
from components.reliability.restarts import Budget

STEP_PHASES = {"data", "forward", "backward", "optimizer"}
LEARNT_PHASES = {"rollout", "evaluate", "checkpoint"}
"""Rare ones. `snapshot` and `flush` are not learnt: how long they wait follows the disk, not the pace."""
REMEMBERED_STEPS = 64
EXCUSED_FACTOR = 1.5
NOBODY: Mapping[int, float] = {}


class Limits(Budget):
    """How long a rank may stand in one place, and how often a job may be started again."""

    step_factor: float = Field(default=2.5, gt=1)
    """A phase of a step may last this many times the median step of the run."""

    floor_seconds: float = Field(default=1.6, gt=0)
    """However short the steps are, no rank is suspected earlier than this: with the looks in between, a rank
    that stands is known after 2 s. Storage that is tried again for longer needs a higher floor."""

    learn_steps: int = Field(default=5, ge=1)
    """Steps seen before the median counts; until then `first_steps_seconds` holds."""

    first_steps_seconds: float = Field(default=120.0, gt=0)
    """Longest phase of a step before the run's own pace is known."""

    start_seconds: float = Field(default=300.0, gt=0)
    """From launch to the first step: imports, rendezvous, loading a checkpoint."""

    rollout_seconds: float = Field(default=300.0, gt=0)
    """The first generation phases; then `rare_factor` holds."""

    evaluate_seconds: float = Field(default=300.0, gt=0)
    """The first evaluations; then `rare_factor` holds."""

    checkpoint_seconds: float = Field(default=600.0, gt=0)
    """The first saves, and any wait for a save's copy or writer; then `rare_factor` holds for saves."""

    rare_factor: float = Field(default=5.0, gt=1)
    """A rollout, evaluation or save may last this many times the longest that two or more of them took."""

    rare_floor_seconds: float = Field(default=30.0, gt=0)
    """And at least this."""

    done_seconds: float = Field(default=60.0, gt=0)
    """From the last step of every rank to the end of the job."""

    poll_seconds: float = Field(default=0.1, gt=0)
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
    """Where a rank is, since when as far as the watchdog saw, and how long it had waited for a core then."""

    beat: Beat
    since: float
    core_wait: float = 0.0

    @property
    def progress(self) -> tuple[int, int]:
        return self.beat.step, PHASES.index(self.beat.phase)

    def stood(self, now: float, core_wait: Mapping[int, float]) -> float:
        """Seconds in which it could have moved."""
        return now - self.since - max(0.0, core_wait.get(self.beat.rank, 0.0) - self.core_wait)


class Watchdog:
    """Remembers where each rank was at the last look; times are seconds of any one clock."""

    def __init__(self, limits: Limits, processes: int, now: float, pace: float | None = None) -> None:
        """`pace`: seconds of a step in an attempt before, with as many ranks; then one step is enough."""
        self.limits, self._pace = limits, pace
        absent = (Beat(rank, 0, 0, "start", 0.0) for rank in range(processes))
        self._places = {beat.rank: _Place(beat, now) for beat in absent}
        self._step_seconds: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._rare: dict[str, list[float]] = defaultdict(list)
        self._excused: dict[str, float] = {}
        self._front = (0, now)
        self._steps_seen = 0

    @property
    def median_step(self) -> float | None:
        """Seconds of a step of this run; None before enough were seen."""
        if self._steps_seen >= self.limits.learn_steps:
            return statistics.median(self._step_seconds)
        return max(self._pace, *self._step_seconds) if self._pace and self._step_seconds else None

    def look(
        self, beats: Sequence[Beat], now: float, core_wait: Mapping[int, float] = NOBODY
    ) -> Finding | None:
        """Take in the last beats; a verdict when the rank that is furthest behind has stood too long.

        `core_wait` is how long each rank has waited for a core since it began, in seconds, where known.
        """
        for beat in beats:
            if beat.rank in self._places and self._places[beat.rank].beat != beat:
                self._move(beat, now, core_wait.get(beat.rank, 0.0))
        self._learn(now)
        behind = min(place.progress for place in self._places.values())
        tied = [place for place in self._places.values() if place.progress == behind]
        suspect = min(tied, key=lambda place: (place.since, place.beat.at, place.beat.rank))
        stood = min(place.stood(now, core_wait) for place in tied)  # one that lacks a core holds up the rest
        limit = self.limit(suspect.beat.phase)
        if stood <= limit:
            return None
        waiting = len(self._places) - len(tied)
        return stall(suspect.beat, seconds=stood, limit=limit, tied=len(tied), waiting=waiting)

    def excuse(self, finding: Finding) -> None:
        """It has moved after all: from now on its phase may last longer."""
        phase, seconds = finding.phase or "", finding.seconds or 0.0
        self._excused[phase] = max(self._excused.get(phase, 0.0), EXCUSED_FACTOR * seconds)

    def limit(self, phase: str) -> float:
        """Seconds that a rank may stand in a phase, as far as is known now."""
        return max(self._usual_limit(phase), self._excused.get(phase, 0.0))

    def _usual_limit(self, phase: str) -> float:
        limits, median = self.limits, self.median_step
        if phase in STEP_PHASES:
            if median is None:
                return limits.first_steps_seconds
            return max(limits.step_factor * median, limits.floor_seconds)
        waits = phase in ("snapshot", "flush")
        ceiling = float(getattr(limits, f"{'checkpoint' if waits else phase}_seconds"))
        if len(seen := self._rare[phase]) < 2:
            return ceiling
        return min(ceiling, max(limits.rare_factor * max(seen), limits.rare_floor_seconds))

    def _move(self, beat: Beat, now: float, core_wait: float) -> None:
        before = self._places[beat.rank]
        if before.beat.phase in LEARNT_PHASES and before.beat.phase != beat.phase:
            self._rare[before.beat.phase].append(now - before.since)
        self._places[beat.rank] = _Place(beat, now, core_wait)

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
