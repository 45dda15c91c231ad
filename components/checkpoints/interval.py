"""How often to save: what saves cost against what failures lose, from what this very job has measured.

A save every T seconds that costs w wastes w/T of the time, and a failure every M seconds loses T/2 on
average. The sum is least near sqrt(2 M w) (Young 1974); Daly (2006) adds terms that matter when w is not
small against M. For a save that training does not wait for, w is the stall alone, but T is never shorter
than the save itself.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Literal

DAY = 86_400.0
Every = int | Literal["auto"]


def young(mtbf: float, cost: float) -> float:
    """Seconds between saves, to first order; both arguments in seconds."""
    return math.sqrt(2 * mtbf * cost)


def daly(mtbf: float, cost: float) -> float:
    """Seconds between the end of one save and the start of the next; both arguments in seconds."""
    if cost >= 2 * mtbf:
        return mtbf
    part = math.sqrt(cost / (2 * mtbf))
    return young(mtbf, cost) * (1 + part / 3 + part * part / 9) - cost


def waste(interval: float, mtbf: float, cost: float) -> float:
    """Share of the time that saves and lost work take, to first order."""
    return cost / interval + interval / (2 * mtbf)


def mtbf_seconds(failures_per_1000_node_days: float, nodes: int) -> float:
    """Mean time between failures of a job on so many nodes, of which any one ends it."""
    return DAY * 1000 / (failures_per_1000_node_days * nodes)


def nodes_of(world_size: int) -> int:
    """Nodes of a torchrun job, from what each agent says it has started."""
    return max(1, world_size // int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))


@dataclass
class Interval:
    """When the next save is due. Every rank must be told the same figures."""

    every: Every
    mtbf: float
    """Seconds."""
    first: int = 20
    """Steps before the first save, when nothing is measured yet and `every` is "auto"."""
    longest: float = 3600.0
    """Seconds between saves that "auto" never exceeds."""
    steps: int = 0
    """Between two saves, as it stands."""
    next: int = 0

    def start(self, step: int) -> None:
        """Training begins behind this step."""
        self.steps = self.first if self.every == "auto" else self.every
        self.next = step + self.steps

    def due(self, step: int) -> bool:
        """Whether to save behind this step."""
        return step >= self.next if self.every == "auto" else step % self.every == 0

    def saved(self, step: int, *, step_seconds: float, cost: float, seconds: float) -> dict[str, float]:
        """What was measured since the last save: seconds a step, stall of a save, and all that it took.

        What is to be reported of the choice; empty when nothing was chosen.
        """
        if self.every != "auto":
            return {}
        best = daly(self.mtbf, max(cost, 1e-3))
        chosen = min(max(best, seconds), self.longest)
        self.steps = max(1, round(chosen / step_seconds))
        self.next = step + self.steps
        return {
            "steps_between": self.steps,
            "seconds_between": round(self.steps * step_seconds, 3),
            "young_seconds": round(young(self.mtbf, cost), 3),
            "daly_seconds": round(best, 3),
            "save_cost_seconds": round(cost, 6),
            "save_seconds": round(seconds, 3),
            "mtbf_hours": round(self.mtbf / 3600, 3),
            "expected_waste": round(waste(self.steps * step_seconds, self.mtbf, cost), 6),
        }
