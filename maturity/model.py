"""The maturity model: what a criterion is, what it may find, and what levels, risks and axes mean.

A level is a kind of proof, not an adjective. A criterion is one file of `maturity/criteria/` named as the
claim it checks; its docstring says the claim, why it matters and how it is proved.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from maturity.evidence import Evidence

VERSION = "1.0"
CRITERIA = "maturity.criteria"

LEVELS = {
    0: ("Not proven", "no record proves the level below"),
    1: ("Scripted", "anyone can start it"),
    2: ("Recorded", "every run leaves a machine-readable record"),
    3: ("Gated", "a bad state cannot be promoted"),
    4: ("Self-recovering", "detected and recovered inside a budget, with nobody woken"),
    5: ("Proven", "proved again on a schedule by injected faults"),
}

DIMENSIONS = {
    "DAT": "Data",
    "TRN": "Training",
    "FLT": "Fault tolerance",
    "CKP": "Checkpoints",
    "SCH": "Scheduling",
    "SRV": "Serving",
    "REL": "Release",
    "OBS": "Observability",
    "CST": "Cost",
    "SEC": "Security and tenancy",
    "LLM": "Alignment",
    "OPS": "Operations",
}

RISK_WEIGHTS = {"critical": 10.0, "high": 7.5, "medium": 5.0, "low": 2.5}

AXES = {
    "reliability": "Reliability",
    "cost_efficiency": "Cost efficiency",
    "operational_readiness": "Operational readiness",
}


class Outcome(StrEnum):
    """What a criterion can find; only `true` earns credit."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not_applicable"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What the evidence says about one claim."""

    outcome: Outcome
    excerpt: str
    """The figures that decided, in one sentence."""
    where: str = ""
    """The records that hold them, `run id/stage`."""


def proved(excerpt: str, where: str) -> Finding:
    """The evidence shows that the claim holds."""
    return Finding(Outcome.TRUE, excerpt, where)


def disproved(excerpt: str, where: str) -> Finding:
    """The evidence shows that the claim does not hold."""
    return Finding(Outcome.FALSE, excerpt, where)


def unknown(excerpt: str) -> Finding:
    """No evidence either way; stays in the denominator and is reported as missing coverage."""
    return Finding(Outcome.UNKNOWN, excerpt)


@dataclass(frozen=True)
class Criterion:
    """One claim about a platform, with what it weighs and how to mend it."""

    name: str
    claim: str
    why: str
    how: str
    dimension: str
    level: int
    risk: str
    axis: str
    pattern: str
    question: str
    """What to ask a human where no record exists; the answer earns nothing here."""
    remedy: str
    check: Callable[[Evidence], Finding]
    applies: Callable[[Evidence], bool]
    """Inventory predicate: whether the evidence holds anything that the claim could be about."""

    @property
    def weight(self) -> float:
        """What the claim counts for in a score."""
        return RISK_WEIGHTS[self.risk]

    def find(self, evidence: Evidence) -> Finding:
        """The finding; a criterion that breaks has found nothing, and says so."""
        try:
            if not self.applies(evidence):
                return Finding(
                    Outcome.NOT_APPLICABLE, f"nothing of this kind in the evidence: {self.question}"
                )
            finding = self.check(evidence)
        except Exception as error:
            return Finding(Outcome.ERROR, f"the criterion broke: {type(error).__name__}: {error}")
        if finding.outcome is Outcome.NOT_APPLICABLE:
            return Finding(Outcome.ERROR, "only applies() may say that a claim is not applicable")
        return finding


def criteria() -> list[Criterion]:
    """Every criterion there is, by dimension and level; a new file is found by being there."""
    found = [_criterion(name) for name in _names()]
    order = list(DIMENSIONS)
    return sorted(found, key=lambda one: (order.index(one.dimension), one.level, one.name))


def rubric_digest() -> str:
    """Hex SHA-256 of the criteria's sources: whether two scores were given by the same rules."""
    sources = {name: Path(str(_module(name).__file__)).read_bytes() for name in _names()}
    parts = [f"{name} {hashlib.sha256(source).hexdigest()}" for name, source in sorted(sources.items())]
    return hashlib.sha256("\n".join([VERSION, *parts]).encode()).hexdigest()


def _names() -> list[str]:
    folder = importlib.import_module(CRITERIA)
    return sorted(found.name for found in pkgutil.iter_modules(folder.__path__))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{CRITERIA}.{name}")


def _criterion(name: str) -> Criterion:
    module = _module(name)
    text = module.__doc__ or ""
    return Criterion(
        name=name,
        claim=text.strip().splitlines()[0].rstrip("."),
        why=_part(text, "Why"),
        how=_part(text, "How"),
        dimension=module.DIMENSION,
        level=module.LEVEL,
        risk=module.RISK,
        axis=module.AXIS,
        pattern=module.PATTERN,
        question=module.QUESTION,
        remedy=module.REMEDY,
        check=module.check,
        applies=getattr(module, "applies", _always),
    )


def _always(evidence: Evidence) -> bool:
    return True


def _part(text: str, label: str) -> str:
    """The sentence after `Why:` or `How:` in a docstring, up to the next label or blank line."""
    found = re.search(rf"^{label}: (.+?)(?=^\w+: |^\s*$|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""
