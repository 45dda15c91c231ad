"""A case study: the real thing broken on purpose, run without and with a pattern, measured, judged, priced.

A study is a file of `case_studies/`; this is what it hands back. Numbers are judged against the ranges that
the file states beforehand, so a study that no longer shows what it says fails.

Pattern: Incident to Probe
Problem: an incident is written up once, and its lesson fades until it happens again.
Answer: the incident is a program that breaks the real thing, runs it without and with the pattern, and
fails when the figures leave their ranges; a schedule runs it again.
Trade-off: a minute or two of real processes for each incident, and ranges that must be kept honest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Literal

from pydantic import Field

from components.config import Profile
from components.observability.provenance import machine
from components.plugins import Config, load
from components.records import Fault, Verdict, git_commit

Kind = Literal["fault", "blind", "seen", "mended", "plain"]
Range = tuple[float, float]
Allowed = tuple[float, float | None]
"""Lowest and highest value that a number may have; None is no upper bound."""

FOLDER = "case-studies"
"""The run folder of all case studies; `assess` reads its records."""

DAYS_PER_MONTH = 30
GPUS_PER_NODE = 8


class Event(Config):
    """Something that happened, on a side's own clock."""

    at: float
    """Seconds since the start of that side."""
    text: str
    kind: Kind = "plain"
    """`fault` broke it, `blind` should have shown it and did not, `seen` showed it, `mended` undid it."""


class Span(Config):
    """A stretch of time in one state."""

    start: float
    end: float
    state: Literal["starting", "healthy", "harmed", "recovering"]
    text: str = ""


class Side(Config):
    """One run of the story: without the pattern, or with it."""

    summary: str
    """What a person would have seen, in a sentence or two."""
    spans: list[Span] = Field(default_factory=list)
    events: list[Event] = Field(default_factory=list)
    progress: list[tuple[float, float]] = Field(default_factory=list)
    """Seconds and steps done, for the line under the spans."""


class Study(Config):
    """What running a case study gives."""

    without: Side
    with_pattern: Side
    numbers: dict[str, float]
    """By name; each must have a range in the file's EXPECT."""
    verdict: str
    """What was shown, in one or two sentences with the figures."""
    faults: list[Fault] = Field(default_factory=list)
    """What was caught on the side with the pattern."""
    notes: list[str] = Field(default_factory=list)
    """What a reader must know to judge the figures."""


class Scale(Config):
    """What an incident of this kind costs a large job, as ranges: one number would be a guess in disguise."""

    share: Range
    """Share of all failures that are of this kind."""
    hours_without: Range
    """Hours of the whole job lost to one incident, without the pattern."""
    hours_with: Range
    """The same with it."""
    reasons: str
    """Where share and hours come from."""


class Anchor(Config):
    """A published failure rate."""

    name: str
    failures_per_1000_node_days: float
    source: str


ANCHORS = (
    Anchor(
        name="Meta RSC-2",
        failures_per_1000_node_days=2.34,
        source="arXiv 2410.21680, 11 months of an A100 research cluster",
    ),
    Anchor(
        name="Llama 3 405B",
        failures_per_1000_node_days=3.79,
        source="arXiv 2407.21783 section 3.3.4: 419 unexpected interruptions, 16,384 GPUs, 54 days (derived)",
    ),
    Anchor(
        name="Meta RSC-1",
        failures_per_1000_node_days=6.50,
        source="arXiv 2410.21680, the larger of its two clusters",
    ),
)
FORMULA = (
    "Cost a month = failures per 1000 node-days / 1000 x GPUs / 8 x 30 days x share of this kind "
    "x hours lost x GPUs x price of a GPU-hour"
)


class Cost(Config):
    """What a month costs by anchor, each a range."""

    gpus: int
    price: Range
    """Of a GPU-hour: an assumption, from a long contract to a listed price."""
    currency: str = "USD"
    incidents: dict[str, Range] = Field(default_factory=dict)
    """Of this kind, in a month."""
    hours_without: dict[str, Range] = Field(default_factory=dict)
    """Of the whole job, lost in a month."""
    hours_with: dict[str, Range] = Field(default_factory=dict)
    without: dict[str, Range] = Field(default_factory=dict)
    """Money, in a month."""
    with_pattern: dict[str, Range] = Field(default_factory=dict)

    @property
    def overall(self) -> tuple[Range, Range]:
        """The widest range over all anchors, without and with."""
        return _hull(self.without), _hull(self.with_pattern)


class Case(Config):
    """What a file of `case_studies/` says of itself."""

    name: str
    title: str
    pattern: str
    story: list[str]
    """Paragraphs of the docstring; the first is one sentence."""
    checklist: list[str]
    carries_over: tuple[Literal["yes", "partly", "no"], str]
    """Whether the finding holds for GPUs, and why."""
    expect: dict[str, Allowed]
    scale: Scale

    @classmethod
    def of(cls, module: ModuleType) -> Case:
        """The case that a module tells."""
        paragraphs = [" ".join(part.split()) for part in (module.__doc__ or "").split("\n\n")]
        return cls(
            name=module.__name__.rpartition(".")[2],
            title=module.TITLE,
            pattern=module.PATTERN,
            story=[paragraph for paragraph in paragraphs if paragraph],
            checklist=module.CHECKLIST,
            carries_over=module.CARRIES_OVER,
            expect=module.EXPECT,
            scale=module.SCALE,
        )


class Result(Config):
    """A case study that was run: the case, what came out, how it was judged, and on what."""

    case: Case
    study: Study
    verdicts: list[Verdict]
    cost: Cost
    profile: str
    at: datetime
    seconds: float
    commit: str | None
    machine: dict[str, str]

    @property
    def passed(self) -> bool:
        """Whether every number is in its range."""
        return all(verdict.passed for verdict in self.verdicts)


def run(name: str, profile: Profile, folder: Path) -> Result:
    """Run a case study in an empty folder, judge its numbers, price it at 1,024 GPUs."""
    module = load("case_studies", name)
    case, started = Case.of(module), time.monotonic()
    study: Study = module.study(profile, folder)
    return Result(
        case=case,
        study=study,
        verdicts=judge_numbers(study.numbers, case.expect),
        cost=cost_at_scale(case.scale),
        profile=profile.name,
        at=datetime.now(UTC),
        seconds=time.monotonic() - started,
        commit=git_commit(),
        machine=machine(),
    )


def cost_at_scale(
    scale: Scale, *, gpus: int = 1024, price: Range = (2.0, 4.0), currency: str = "USD"
) -> Cost:
    """What this kind of incident costs a job of `gpus` in a month, over the published failure rates."""
    incidents = {anchor.name: _scaled(scale.share, _failures(anchor, gpus)) for anchor in ANCHORS}
    without = {name: _product(many, scale.hours_without) for name, many in incidents.items()}
    with_pattern = {name: _product(many, scale.hours_with) for name, many in incidents.items()}
    gpu_hour = _scaled(price, gpus)
    return Cost(
        gpus=gpus,
        price=price,
        currency=currency,
        incidents=incidents,
        hours_without=without,
        hours_with=with_pattern,
        without={name: _product(hours, gpu_hour) for name, hours in without.items()},
        with_pattern={name: _product(hours, gpu_hour) for name, hours in with_pattern.items()},
    )


def hours_lost(
    *, seen_after: float, interval: float, kept: int, archived_every: float, restart: float
) -> Range:
    """Hours of a job that one damaged checkpoint costs: all since the newest copy from before it is repeated.

    That copy is `interval` older than the damage while it is among the `kept` newest; later it is one that
    was archived, and how old that is depends on when the damage came. 0 hours until it is seen: at the load.
    """
    newer = math.floor(seen_after / interval) + 1  # the damaged one included
    oldest = interval if newer < kept else max(interval, archived_every)
    return seen_after + interval + restart, seen_after + oldest + restart


def _failures(anchor: Anchor, gpus: int) -> float:
    """Of all kinds, in a month."""
    return anchor.failures_per_1000_node_days / 1000 * gpus / GPUS_PER_NODE * DAYS_PER_MONTH


def _scaled(values: Range, factor: float) -> Range:
    return values[0] * factor, values[1] * factor


def _product(one: Range, other: Range) -> Range:
    return one[0] * other[0], one[1] * other[1]


def judge_numbers(numbers: Mapping[str, float], expect: Mapping[str, Allowed]) -> list[Verdict]:
    """One verdict a number: inside its range or not; one without a range, or a range without it, fails."""
    return [_judge(name, numbers.get(name), expect.get(name)) for name in dict.fromkeys([*expect, *numbers])]


def _judge(name: str, value: float | None, allowed: Allowed | None) -> Verdict:
    if value is None or allowed is None:
        missing = "was not measured" if value is None else "has no range in EXPECT"
        return Verdict(gate=name, passed=False, reason=f"{name} {missing}")
    low, high = allowed
    passed = low <= value and (high is None or value <= high)  # NaN is inside nothing
    return Verdict(
        gate=name,
        passed=passed,
        reason=f"{number(value)} {'is' if passed else 'is not'} within {interval(allowed)}",
        figures={"value": value, "low": low, "high": high},
    )


def number(value: float) -> str:
    """A figure with as many digits as tell anything."""
    if math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    if abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"


def interval(allowed: Allowed) -> str:
    """A range as people read it."""
    low, high = allowed
    if high is None:
        return f"at least {number(low)}"
    if low == high:
        return f"exactly {number(low)}"
    return f"at most {number(high)}" if low == 0 else f"{number(low)} to {number(high)}"


def _hull(ranges: Mapping[str, Range]) -> Range:
    return min(low for low, _ in ranges.values()), max(high for _, high in ranges.values())
