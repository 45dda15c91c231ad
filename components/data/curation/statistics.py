"""Any number of documents as two small frames: a sample of them, and groups of all with their extremes.

The least and the most of a group say of all its documents whether they keep a bound, so the suite speaks for
the whole corpus and sees at most `sample_rows` and `max_groups` rows. When groups become too many,
neighbours join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from components.data.curation.facts import Facts
from components.data.curation.rules import Rule
from components.data.curation.suite import Expectation

Frame = dict[str, list[Any]]


@dataclass
class Group:
    """Documents that followed each other."""

    documents: int = 0
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)

    def include(self, documents: int, low: dict[str, float], high: dict[str, float]) -> None:
        """Take in a document or another group."""
        self.documents += documents
        self.low = {name: min(value, self.low.get(name, value)) for name, value in low.items()}
        self.high = {name: max(value, self.high.get(name, value)) for name, value in high.items()}


class Statistics:
    """What is remembered of documents that have gone by."""

    def __init__(self, asked: Sequence[Rule], *, sample_rows: int, max_groups: int) -> None:
        self.columns = list(dict.fromkeys(rule.column for rule in asked))
        self.documents = 0
        self._asked, self._sample_rows, self._max_groups = asked, sample_rows, max_groups
        self._sample: list[Facts] = []
        self._groups: list[Group] = []
        self._group_size = 1

    def add(self, facts: Facts) -> None:
        """Remember a document that was kept."""
        self.documents += 1
        self._sample.append(facts)
        if len(self._sample) >= 2 * self._sample_rows:
            self._sample = self._drawn()
        if not self._groups or self._groups[-1].documents >= self._group_size:
            self._make_room()
            self._groups.append(Group())
        values = {name: _below_all(getattr(facts, name)) for name in self.columns}
        self._groups[-1].include(1, values, values)

    def sample(self) -> tuple[Frame, list[Expectation]]:
        """One row a document, and what is expected of it."""
        drawn = self._drawn()
        columns = [one.name for one in fields(Facts)]
        return {name: [getattr(facts, name) for facts in drawn] for name in columns}, [
            Expectation("ExpectTableRowCountToEqual", {"value": min(self.documents, self._sample_rows)}),
            *(Expectation("ExpectColumnValuesToNotBeNull", {"column": name}) for name in columns),
            *(Expectation("ExpectColumnValuesToBeUnique", {"column": name}) for name in ("key", "sha256")),
            *(rule.expectation for rule in self._asked),
        ]

    def groups(self) -> tuple[Frame, list[Expectation]]:
        """One row a group, and what is expected of it."""
        frame: Frame = {"documents": [group.documents for group in self._groups]}
        for name in self.columns:
            frame[f"{name}_min"] = [group.low[name] for group in self._groups]
            frame[f"{name}_max"] = [group.high[name] for group in self._groups]
        total = {"column": "documents", "min_value": self.documents, "max_value": self.documents}
        return frame, [
            Expectation("ExpectColumnSumToBeBetween", total),
            *(Expectation("ExpectColumnValuesToNotBeNull", {"column": name}) for name in frame),
            *(expectation for rule in self._asked for expectation in rule.of_groups),
        ]

    def _drawn(self) -> list[Facts]:
        """Those of lowest content hash: a fair sample, and the same one in whatever order they came."""
        return sorted(self._sample, key=lambda facts: facts.sha256)[: self._sample_rows]

    def _make_room(self) -> None:
        if len(self._groups) < self._max_groups:
            return
        joined = self._groups[::2]
        for group, neighbour in zip(joined, self._groups[1::2], strict=False):
            group.include(neighbour.documents, neighbour.low, neighbour.high)
        self._groups = joined
        self._group_size *= 2


def _below_all(value: float | None) -> float:
    """An unknown fact breaks its rule, so in a group's extremes it is less than any bound."""
    return float("-inf") if value is None else value
