"""A scorecard for people: JSON to keep, Markdown to show, text for a terminal; no time, no path."""

from __future__ import annotations

import json
import textwrap

from maturity.model import AXES, DIMENSIONS, LEVELS, Criterion, Finding, Outcome
from maturity.scoring import Dimension, Scorecard

MARKS = {
    Outcome.TRUE: "proved",
    Outcome.FALSE: "DISPROVED",
    Outcome.UNKNOWN: "unknown",
    Outcome.NOT_APPLICABLE: "not applicable",
    Outcome.ERROR: "ERROR",
}
WIDTH = 100


def as_json(scorecard: Scorecard) -> str:
    """The whole scorecard; equal evidence and rubric give equal bytes."""
    return json.dumps(scorecard.as_dict(), indent=2, sort_keys=True) + "\n"


def as_text(scorecard: Scorecard) -> str:
    """The scorecard as a terminal shows it: the verdict, a row a dimension, then every claim."""
    rows = [_text_row(one) for one in scorecard.dimensions if one.status != "not_covered"]
    claims = [line for criterion, finding in scorecard.judged for line in _text_claim(criterion, finding)]
    parts = [*_headline(scorecard), "", *rows, "", *claims, "", *_footer(scorecard)]
    return "\n".join(parts) + "\n"


def as_markdown(scorecard: Scorecard) -> str:
    """The scorecard as a page: dimensions, claims with their excerpts, and what to mend next."""
    first, *rest = _headline(scorecard)
    lines = [f"# {first}", "", *(f"{line}  " for line in rest), ""]
    lines += ["| dimension | level | score | kept from the next level by |", "|---|---|---|---|"]
    lines += [_markdown_row(one) for one in scorecard.dimensions]
    lines += ["", "| claim | dimension | level | finding | evidence | remedy |", "|---|---|---|---|---|---|"]
    lines += [_markdown_claim(criterion, finding) for criterion, finding in scorecard.judged]
    return "\n".join([*lines, "", *_footer(scorecard)]) + "\n"


def level_name(level: int | None) -> str:
    """`L3 Gated`, or a dash where there is nothing to score."""
    return "—" if level is None else f"L{level} {LEVELS[level][0]}"


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "—" if share is None else f"{share:.0%}"


def _headline(scorecard: Scorecard) -> list[str]:
    weakest = ", ".join(DIMENSIONS[name].lower() for name in scorecard.blocked_by) or "nothing"
    axes = "   ".join(f"{AXES[axis]} {percent(share)}" for axis, share in scorecard.axes.items())
    return [
        f"Platform maturity: {level_name(scorecard.level)}",
        f"the weakest dimension decides: {weakest}",
        f"coverage {scorecard.known} of {scorecard.applicable} claims known   {axes}",
    ]


def _text_row(one: Dimension) -> str:
    if one.level is None:
        return f"{one.name:<20} {one.status.replace('_', ' ')}"
    bar = "#" * one.level + "." * (max(LEVELS) - one.level)
    blocked = f"   blocked by {', '.join(one.blocking)}" if one.blocking else ""
    return f"{one.name:<20} [{bar}] {level_name(one.level):<18} {percent(one.score):>4}{blocked}"


def _text_claim(criterion: Criterion, finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.outcome]:<10} {criterion.claim} ({criterion.dimension}, L{criterion.level})"]
    lines += _indented(finding.excerpt)
    if finding.outcome not in (Outcome.TRUE, Outcome.NOT_APPLICABLE):
        lines += _indented(f"remedy: {criterion.remedy}")
    return lines


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 11, subsequent_indent=" " * 11)


def _markdown_row(one: Dimension) -> str:
    if one.level is None:
        return f"| {one.name} | — | — | {one.status.replace('_', ' ')} |"
    blocking = ", ".join(f"`{name}`" for name in one.blocking) or "no criterion above"
    return f"| {one.name} | {level_name(one.level)} | {percent(one.score)} | {blocking} |"


def _markdown_claim(criterion: Criterion, finding: Finding) -> str:
    remedy = "" if finding.outcome is Outcome.TRUE else criterion.remedy
    cells = [
        criterion.claim,
        criterion.dimension,
        f"L{criterion.level}",
        MARKS[finding.outcome],
        f"{finding.excerpt} ({finding.where})" if finding.where else finding.excerpt,
        remedy,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _footer(scorecard: Scorecard) -> list[str]:
    missing = [one.name.lower() for one in scorecard.dimensions if one.status == "not_covered"]
    lines = [f"Not covered by a criterion yet: {', '.join(missing)}."] if missing else []
    evidence = f"{scorecard.evidence_records} records, sha256 {scorecard.evidence_digest[:12]}"
    return [*lines, f"Evidence: {evidence}. Rubric {scorecard.rubric[:12]}."]
