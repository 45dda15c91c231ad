"""What a document must be to be kept, and what the kept documents must be together.

A rule is a bound on one fact. It decides on each document as it streams by, and it is an expectation of the
suite that Great Expectations runs over the facts of what was kept and over the totals. The frame has at most
`sample_rows` rows, so the suite costs the same for any corpus.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from pydantic import Field

from components import plugins
from components.data.curation.checked import Checked, SetAside, set_aside
from components.data.curation.facts import Facts, facts_of
from components.data.curation.suite import Expectation, validate
from components.data.document import Document
from components.errors import DataError


class Config(plugins.Config):
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

    max_set_aside_share: float = Field(default=0.2, ge=0, le=1)
    """With more set aside than this the whole source is refused: something is wrong with it."""

    sample_rows: int = Field(default=50_000, ge=1)
    """Rows that Great Expectations sees; of more documents it sees a sample, the totals count all."""


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
        """The same bound, for the suite."""
        bounds = {"column": self.column, "min_value": self.low, "max_value": self.high}
        return Expectation("ExpectColumnValuesToBeBetween", bounds)


def rules(config: Config) -> list[Rule]:
    """The bounds, in the order in which a document is asked."""
    return [
        Rule("is_text", 1, "not_text"),
        Rule("characters", 1, "empty"),
        Rule("characters", config.min_characters, "too_short", config.max_characters, "too_long"),
        Rule("printable_share", config.min_printable_share, "unprintable"),
        Rule(
            "compression_ratio",
            config.min_compression_ratio,
            "incompressible",
            config.max_compression_ratio,
            "repetitive",
        ),
    ]


def curate(documents: Iterable[Document], config: Config) -> Checked:
    """Set bad documents aside with a reason, then ask the suite of what is left."""
    kept: list[Document] = []
    rows: list[Facts] = []
    left_out: list[SetAside] = []
    seen: set[str] = set()
    digest, characters = hashlib.sha256(), 0
    asked = rules(config)
    for document in documents:
        facts = facts_of(document)
        digest.update(facts.sha256.encode())
        characters += facts.characters
        if reason := document.flaw or _reason(facts, asked, seen):
            left_out.append(set_aside(document, reason))
            continue
        seen.add(facts.sha256)
        kept.append(document)
        rows.append(facts)
    report = _report(rows, left_out, config)
    return Checked(kept, left_out, report, digest.hexdigest(), characters)


def _reason(facts: Facts, asked: list[Rule], seen: set[str]) -> str | None:
    broken = (reason for rule in asked if (reason := rule.reason(facts)))
    return next(broken, "duplicate" if facts.sha256 in seen else None)


def _report(rows: list[Facts], left_out: list[SetAside], config: Config) -> dict[str, Any]:
    if not rows:
        reasons = dict(Counter(one.reason for one in left_out)) or "the source gave none"
        raise DataError(f"no document was kept: {reasons}; choose another data.source or loosen data.checks")
    sample = sorted(rows, key=lambda facts: facts.sha256)[: config.sample_rows]
    columns = {field.name: [getattr(facts, field.name) for facts in sample] for field in fields(Facts)}
    found = {
        "documents": validate("documents", columns, _of_documents(config, len(sample))),
        "totals": validate("totals", _totals(rows, len(left_out)), _of_totals(config)),
    }
    report: dict[str, Any] = {frame: [asdict(one) for one in made] for frame, made in found.items()}
    report["success"] = all(finding.success for made in found.values() for finding in made)
    return report


def _of_documents(config: Config, count: int) -> list[Expectation]:
    columns = [field.name for field in fields(Facts)]
    return [
        Expectation("ExpectTableRowCountToEqual", {"value": count}),
        *(Expectation("ExpectColumnValuesToNotBeNull", {"column": name}) for name in columns),
        *(Expectation("ExpectColumnValuesToBeUnique", {"column": name}) for name in ("key", "sha256")),
        *(rule.expectation for rule in rules(config)),
    ]


def _totals(rows: Sequence[Facts], set_aside: int) -> dict[str, list[float]]:
    return {
        "kept": [len(rows)],
        "characters": [sum(facts.characters for facts in rows)],
        "duplicates": [len(rows) - len({facts.sha256 for facts in rows})],
        "set_aside_share": [set_aside / (len(rows) + set_aside)],
    }


def _of_totals(config: Config) -> list[Expectation]:
    bounds: dict[str, dict[str, float]] = {
        "kept": {"min_value": 1},
        "characters": {"min_value": 1},
        "duplicates": {"max_value": 0},
        "set_aside_share": {"max_value": config.max_set_aside_share},
    }
    return [
        Expectation("ExpectColumnMaxToBeBetween", {"column": column, **bound})
        for column, bound in bounds.items()
    ]
