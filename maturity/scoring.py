"""From findings to levels and scores, by rules that cannot be argued with one mean.

A level is the highest at which nothing below is missing; the platform's level is its weakest dimension's.
What is unknown stays in the denominator as nothing, and is told apart as coverage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from maturity.evidence import Evidence
from maturity.model import (
    AXES,
    DIMENSIONS,
    LEVELS,
    VERSION,
    Criterion,
    Finding,
    Outcome,
    criteria,
    rubric_digest,
)

BLOCKING = ("critical", "high")
SHARE_OF_A_LEVEL = 0.8

Judged = tuple[Criterion, Finding]


@dataclass(frozen=True)
class Dimension:
    """One row of the scorecard."""

    id: str
    name: str
    status: str
    """`scored`, `not_covered` (no criterion yet) or `not_applicable`."""
    level: int | None
    score: float | None
    blocking: tuple[str, ...]
    """Criteria that keep the dimension from its next level."""


@dataclass(frozen=True)
class Scorecard:
    """What the evidence proves; the same evidence and rubric give the same scorecard, byte for byte."""

    level: int | None
    blocked_by: tuple[str, ...]
    known: int
    applicable: int
    axes: dict[str, float | None]
    dimensions: tuple[Dimension, ...]
    judged: tuple[Judged, ...]
    evidence_digest: str
    evidence_records: int
    rubric: str

    @property
    def coverage(self) -> float:
        """Share of the applicable criteria that the evidence says anything about."""
        return self.known / self.applicable if self.applicable else 0.0

    @property
    def gaps(self) -> list[Judged]:
        """What is not proved, heaviest first and lowest level first."""
        open_ = [(c, f) for c, f in self.judged if f.outcome not in (Outcome.TRUE, Outcome.NOT_APPLICABLE)]
        return sorted(open_, key=lambda one: (-one[0].weight, one[0].level, one[0].name))

    def as_dict(self) -> dict[str, Any]:
        """JSON-serialisable content, without a time or a path of this machine."""
        return {
            "model_version": VERSION,
            "rubric": self.rubric,
            "evidence": {"digest": self.evidence_digest, "records": self.evidence_records},
            "platform": {
                "level": self.level,
                "name": LEVELS[self.level][0] if self.level is not None else None,
                "blocked_by": list(self.blocked_by),
            },
            "coverage": {"known": self.known, "applicable": self.applicable},
            "axes": {name: _rounded(score) for name, score in self.axes.items()},
            "dimensions": [_dimension_dict(one) for one in self.dimensions],
            "criteria": [_judged_dict(criterion, finding) for criterion, finding in self.judged],
        }


def score(evidence: Evidence, chosen: Sequence[Criterion] | None = None) -> Scorecard:
    """Ask every criterion, then weigh what they found."""
    asked = criteria() if chosen is None else list(chosen)
    judged = tuple((criterion, criterion.find(evidence)) for criterion in asked)
    dimensions = tuple(_dimension(name, judged) for name in DIMENSIONS)
    levels = [one.level for one in dimensions if one.level is not None]
    level = min(levels, default=None)
    applicable = _applicable(judged)
    return Scorecard(
        level=level,
        blocked_by=tuple(one.id for one in dimensions if one.level is not None and one.level == level),
        known=sum(f.outcome in (Outcome.TRUE, Outcome.FALSE) for _, f in applicable),
        applicable=len(applicable),
        axes={axis: weighted_share(one for one in applicable if one[0].axis == axis) for axis in AXES},
        dimensions=dimensions,
        judged=judged,
        evidence_digest=evidence.digest,
        evidence_records=len(evidence.records),
        rubric=rubric_digest(),
    )


def weighted_share(judged: Iterable[Judged]) -> float | None:
    """sum(weight x credit) / sum(weight): unknown weighs and earns nothing; None when nothing was asked."""
    pairs = list(judged)
    total = sum(criterion.weight for criterion, _ in pairs)
    earned = sum(criterion.weight for criterion, finding in pairs if finding.outcome is Outcome.TRUE)
    return earned / total if total else None


def level_of(judged: Sequence[Judged]) -> int:
    """The highest level that has criteria and below which nothing that blocks is unproved."""
    reached = 0
    for level in sorted({criterion.level for criterion, _ in judged}):
        if _missing(judged, level):
            break
        reached = level
    return reached


def _missing(judged: Sequence[Judged], level: int) -> tuple[str, ...]:
    """What keeps a level out of reach: an unproved critical or high claim, or under 80% of the weight."""
    here = [one for one in judged if one[0].level == level]
    unproved = [(c, f) for c, f in here if f.outcome is not Outcome.TRUE]
    blocking = [c.name for c, _ in unproved if c.risk in BLOCKING]
    if not blocking and (weighted_share(here) or 0.0) < SHARE_OF_A_LEVEL:
        blocking = [c.name for c, _ in unproved]
    return tuple(blocking)


def _dimension(name: str, judged: Sequence[Judged]) -> Dimension:
    own = [one for one in judged if one[0].dimension == name]
    asked = _applicable(own)
    if not asked:
        status = "not_applicable" if own else "not_covered"
        return Dimension(name, DIMENSIONS[name], status, None, None, ())
    blocked = (_missing(asked, level) for level in sorted({criterion.level for criterion, _ in asked}))
    first = next((missing for missing in blocked if missing), ())
    return Dimension(name, DIMENSIONS[name], "scored", level_of(asked), weighted_share(asked), first)


def _applicable(judged: Iterable[Judged]) -> list[Judged]:
    return [(c, f) for c, f in judged if f.outcome is not Outcome.NOT_APPLICABLE]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _dimension_dict(one: Dimension) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "status": one.status,
        "level": one.level,
        "score": _rounded(one.score),
        "blocking": list(one.blocking),
    }


def _judged_dict(criterion: Criterion, finding: Finding) -> dict[str, Any]:
    return {
        "name": criterion.name,
        "claim": criterion.claim,
        "why": criterion.why,
        "how": criterion.how,
        "dimension": criterion.dimension,
        "level": criterion.level,
        "risk": criterion.risk,
        "axis": criterion.axis,
        "pattern": criterion.pattern,
        "question": criterion.question,
        "remedy": criterion.remedy,
        "outcome": finding.outcome.value,
        "excerpt": finding.excerpt,
        "where": finding.where,
    }
