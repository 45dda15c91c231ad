"""Bounds on the facts of a document, each at once a decision on a stream and an expectation of a suite."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from components import plugins
from components.data.curation.facts import Facts
from components.data.curation.suite import Expectation


class Bounds(plugins.Config):
    """Bounds of a good document."""

    min_characters: int = Field(default=64, ge=1)
    """Shorter documents are set aside."""

    max_characters: int = Field(default=1_000_000, ge=1)
    """Longer documents are set aside."""

    min_printable_share: float = Field(default=0.99, ge=0, le=1)
    """Documents with more control characters are set aside."""

    min_compression_ratio: float = Field(default=1.0, gt=0)
    """Documents that compress less are noise."""

    max_compression_ratio: float = Field(default=10.0, gt=0)
    """Documents that compress more repeat themselves."""


@dataclass(frozen=True)
class Rule:
    """One bound on one fact."""

    column: str
    low: float
    too_low: str
    """Why a document below is set aside; so is one whose fact is unknown."""
    high: float | None = None
    too_high: str = ""

    def reason(self, facts: Facts) -> str | None:
        """Why a document breaks this rule, if it does."""
        value = getattr(facts, self.column)
        if value is None or value < self.low:
            return self.too_low
        return self.too_high if self.high is not None and value > self.high else None

    @property
    def expectation(self) -> Expectation:
        """The same bound on a frame with one row a document."""
        bounds = {"column": self.column, "min_value": self.low, "max_value": self.high}
        return Expectation("ExpectColumnValuesToBeBetween", bounds)

    @property
    def of_groups(self) -> list[Expectation]:
        """The same bound on a frame with the least and the most of each group of documents."""
        kind = "ExpectColumnValuesToBeBetween"
        low = Expectation(kind, {"column": f"{self.column}_min", "min_value": self.low})
        if self.high is None:
            return [low]
        return [low, Expectation(kind, {"column": f"{self.column}_max", "max_value": self.high})]


def rules(bounds: Bounds) -> list[Rule]:
    """The bounds, in the order in which a document is asked."""
    return [
        Rule("is_text", 1, "not_text"),
        Rule("characters", 1, "empty"),
        Rule("characters", bounds.min_characters, "too_short", bounds.max_characters, "too_long"),
        Rule("printable_share", bounds.min_printable_share, "unprintable"),
        Rule(
            "compression_ratio",
            bounds.min_compression_ratio,
            "incompressible",
            bounds.max_compression_ratio,
            "repetitive",
        ),
        Rule("forbidden", 0, "private", 0, "private"),
    ]
