"""Whether a job that was ended by a fault starts again, and when: the policy, without a clock or a process.

Pattern: Restart Budget
Problem: a bounded number of restarts is used up by a long healthy run, and wasted on a fault that cannot go
away; an unbounded one starts a broken job for ever, and all jobs of a cluster in the same second.
Answer: so many restarts in a window of time, refilled by steps that a checkpoint has kept; a pause that
doubles and is spread by chance; and none at all when the same fault comes back before any new step.
Trade-off: a fault that strikes the same rank twice by chance, before the job has got further, ends it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from pydantic import Field

from components.plugins import Config
from components.reliability.finding import Finding


class Budget(Config):
    """How often a job may be started again, and after which pause."""

    max_restarts: int = Field(default=3, ge=0)
    """How often a job is started again within `restart_window_seconds`."""

    restart_window_seconds: float = Field(default=3600.0, gt=0)
    """Restarts longer ago than this no longer count, nor do those before steps that a checkpoint has kept."""

    crash_loop_after: int = Field(default=2, ge=2)
    """The same fault so many times running, none of them beyond the furthest step, ends the job at once."""

    backoff_seconds: float = Field(default=1.0, ge=0)
    """Pause before the first restart; doubles with each one that counts."""

    longest_backoff_seconds: float = Field(default=300.0, ge=0)
    """The pause never grows beyond this."""

    backoff_jitter: float = Field(default=0.25, ge=0, le=1)
    """Share of a pause by which chance makes it longer or shorter."""


@dataclass(frozen=True)
class Ended:
    """An attempt that a fault ended, as far as its beats tell."""

    finding: Finding
    at: float
    """Seconds of a monotonic clock."""
    first: int | None
    """The step it began with; None when it never came to one."""
    furthest: int
    """The last step that every rank had reached; 0 before the first."""


@dataclass(frozen=True)
class Again:
    """Start again, after a pause."""

    seconds: float


@dataclass(frozen=True)
class Enough:
    """Do not: the sentence says why, and what to look at."""

    why: str


class Restarts:
    """Remembers the faults of one job. The same seed gives the same pauses."""

    def __init__(self, budget: Budget, seed: str = "") -> None:
        self.budget = budget
        self._chance = random.Random(seed)
        self._counted: deque[float] = deque()
        self._before: Finding | None = None
        self._same = 0
        self._first, self._furthest = 0, 0

    def after(self, ended: Ended) -> Again | Enough:
        """What follows from an attempt that has just ended badly."""
        if ended.first is not None and ended.first > self._first:
            self._counted.clear()  # it went on from a later checkpoint than the attempt before
            self._first = ended.first
        further = ended.furthest > self._furthest
        self._furthest = max(self._furthest, ended.furthest)
        loops = self._before is not None and not further and is_same(self._before, ended.finding)
        self._same = self._same + 1 if loops else 1
        self._before = ended.finding
        while self._counted and ended.at - self._counted[0] > self.budget.restart_window_seconds:
            self._counted.popleft()
        used = len(self._counted)
        if used >= self.budget.max_restarts:
            return Enough(_used_up(used, self.budget))
        if self._same >= self.budget.crash_loop_after:
            return Enough(_looping(ended.finding, self._same, self._furthest))
        self._counted.append(ended.at)
        return Again(self._pause(used))

    def _pause(self, used: int) -> float:
        budget = self.budget
        whole = min(budget.backoff_seconds * 2.0**used, budget.longest_backoff_seconds)
        return whole * (1 + budget.backoff_jitter * self._chance.uniform(-1, 1))


def is_same(one: Finding, other: Finding) -> bool:
    """Of one kind, and at one step or on one rank."""
    same_step = one.step is not None and one.step == other.step
    same_rank = one.rank is not None and one.rank == other.rank
    return one.kind == other.kind and (same_step or same_rank or (one.step, one.rank) == (None, None))


def _used_up(used: int, budget: Budget) -> str:
    if budget.max_restarts == 0:
        return "no restart is allowed (limits.max_restarts=0)"
    window = f"{budget.restart_window_seconds:g} s"
    return f"{used} restarts within {window} have kept no new step (limits.max_restarts)"


def _looping(finding: Finding, times: int, furthest: int) -> str:
    where = " of ".join(
        [
            *([f"step {finding.step}"] if finding.step is not None else []),
            *([f"rank {finding.rank}"] if finding.rank is not None else []),
        ]
    )
    place = f" in {where}" if where else ""
    look = (
        "what comes back at one step is in its data or code, what follows one rank is in its node"
        if furthest
        else "no attempt came to a step: read the log for an import, a setting or a file that is missing"
    )
    return (
        f"a crash loop: {finding.kind}{place} came {times} times running and no attempt got beyond step "
        f"{furthest}, so another restart would only meet it again; {look}"
    )
