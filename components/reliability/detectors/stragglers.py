"""Stragglers: a rank that is slow in a phase where no rank waits for another.

In synchronous training a slow rank makes all others wait inside collectives, so whole steps are equally long
everywhere. Data and forward hold no collective under ZeRO 0-2: whoever is long there is the one waited for.
A rank that is slow in backward alone is not found: there, waits and work are told apart too roughly.

On two cores that others want as well it has named healthy ranks for a few steps. So a profile has to ask for
it, and should where each rank has cores or a device of its own. What it finds: case study `straggler`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from statistics import median

from pydantic import Field

from components import plugins
from components.reliability.finding import Finding, Sight


class Config(plugins.Config):
    """How much slower, for how long."""

    phases: tuple[str, ...] = ("data", "forward")
    """Phases without a collective."""
    window: int = Field(default=11, ge=3)
    """Steps whose median counts."""
    ratio: float = Field(default=2.0, gt=1)
    """Times the median of the other ranks."""
    least_seconds: float = Field(default=0.02, ge=0)
    """Differences below this are noise, whatever the ratio."""
    ends: bool = False
    """Whether the attempt is ended, for a launcher that starts the next one on other machines."""
    least_share: float = Field(default=0.35, ge=0, lt=1)
    """Of a median step: a rank that keeps the others waiting for less may be one whose turn on a shared
    core came late."""


class Stragglers:
    """Medians over the last steps of each rank and phase, against those of the other ranks."""

    def __init__(self, config: Config, ranks: int) -> None:
        self.config, self.ranks = config, ranks
        self.spent: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=config.window))
        self.steps: deque[float] = deque(maxlen=config.window * ranks)
        self.slow: set[tuple[str, int]] = set()
        self.step = 0

    def look(self, sight: Sight) -> Iterator[Finding]:
        """A rank that became slow, once; and once more when it is over."""
        for event in sight.events:
            if event["kind"] != "step":
                continue
            self.step = max(self.step, int(event["step"]))
            seconds = event.get("seconds", {})  # not every loop times its phases
            self.steps.append(sum(seconds.values()))
            for phase in self.config.phases:
                if phase in seconds:
                    self.spent[phase, int(event["rank"])].append(float(seconds[phase]))
                    yield from self._judged(phase)

    def _judged(self, phase: str) -> Iterator[Finding]:
        full = {
            rank: median(times)
            for rank in range(self.ranks)
            if len(times := self.spent[phase, rank]) == self.config.window
        }
        if len(full) < self.ranks or self.ranks < 2:
            return
        for rank, own in full.items():
            usual = median(value for other, value in full.items() if other != rank)
            known = (phase, rank) in self.slow
            eased = 0.5 if known else 1.0  # what is slow stays so until it is clearly over
            bound = 1 + (self.config.ratio - 1) * eased
            least = max(self.config.least_seconds, self.config.least_share * eased * median(self.steps))
            slow = own > bound * usual and own - usual > least
            if slow != known:
                self.slow ^= {(phase, rank)}
                yield self._told(phase, rank, own, usual, over=known)

    def _told(self, phase: str, rank: int, own: float, usual: float, *, over: bool) -> Finding:
        word = "is no longer slow" if over else "is slow"
        return Finding(
            kind="straggler_over" if over else "straggler",
            sentence=f"rank {rank} {word} in {phase}: {own:.3f} s a step, the other ranks {usual:.3f} s",
            rank=rank,
            step=self.step,
            phase=phase,
            ends=self.config.ends and not over,
            confidence="likely",
            advice="" if over else "Look at the load, clocks and disks of that rank's machine.",
            figures={"seconds": own, "others": usual},
        )


def make(config: Config, ranks: int) -> Stragglers:
    """Anew for each attempt."""
    return Stragglers(config, ranks)
