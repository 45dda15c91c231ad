"""Data stalls: a rank that spends most of its steps waiting for data, and whether all ranks do."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from pydantic import Field

from components import plugins
from components.reliability.finding import Finding, Sight


class Config(plugins.Config):
    """Which share of the time, over how many steps."""

    window: int = Field(default=20, ge=2)
    """Steps whose sum counts."""
    share: float = Field(default=0.5, gt=0, lt=1)
    """Of the time of these steps spent in data."""
    least_seconds: float = Field(default=0.02, ge=0)
    """Mean wait a step below which a high share is only a short step."""


class DataStalls:
    """Seconds in data and in all phases of the last steps of each rank."""

    def __init__(self, config: Config, ranks: int) -> None:
        self.config, self.ranks = config, ranks
        self.spent: dict[int, deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=config.window))
        self.stalled: set[int] = set()

    def look(self, sight: Sight) -> Iterator[Finding]:
        """A rank that began to wait for data, once until it waits for less than half the bound."""
        began: dict[int, int] = {}
        for event in sight.events:
            if event["kind"] == "step" and "seconds" in event:  # not every loop times its phases
                rank, seconds = int(event["rank"]), event["seconds"]
                self.spent[rank].append((float(seconds.get("data", 0)), sum(seconds.values())))
                if self._begins(rank):
                    began[rank] = int(event["step"])
        for rank, step in began.items():
            yield self._told(rank, step)

    def _waits(self, rank: int) -> tuple[float, float]:
        """Share of the time in data, and the mean wait a step."""
        waited = sum(data for data, _ in self.spent[rank])
        return waited / max(sum(whole for _, whole in self.spent[rank]), 1e-9), waited / len(self.spent[rank])

    def _begins(self, rank: int) -> bool:
        share, wait = self._waits(rank)
        if rank in self.stalled:
            if share < self.config.share / 2:
                self.stalled.remove(rank)
            return False
        full = len(self.spent[rank]) == self.config.window
        begins = full and share > self.config.share and wait > self.config.least_seconds
        if begins:
            self.stalled.add(rank)
        return begins

    def _told(self, rank: int, step: int) -> Finding:
        share, wait = self._waits(rank)
        count = len(self.stalled)
        where = "all ranks wait" if count == self.ranks else f"{count} of {self.ranks} ranks wait"
        return Finding(
            kind="data_stall",
            sentence=f"rank {rank} spends {share:.0%} of its steps waiting for data ({where})",
            rank=rank,
            step=step,
            phase="data",
            ends=False,
            advice="Look at the storage, or read ahead with training.loader_workers.",
            figures={"share": share, "seconds": wait, "ranks_waiting": sorted(self.stalled)},
        )


def make(config: Config, ranks: int) -> DataStalls:
    """Anew for each attempt."""
    return DataStalls(config, ranks)
