"""Which documents a model may learn from: each kept or set aside with a reason, then the suite's verdict.

A first pass sieves the source and writes what it keeps to a spool; a second one reads the spool and sets
aside what would leak held-out documents or evaluation sets. Great Expectations then sees two small frames
and the totals, never the corpus, so it costs the same for any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import Field

from components.data.curation.checked import Checked, Kept, SetAside, set_aside
from components.data.curation.contamination import Config as Contamination
from components.data.curation.contamination import Screen
from components.data.curation.near_duplicates import Config as Likeness
from components.data.curation.private import Config as Privacy
from components.data.curation.rules import Bounds, rules
from components.data.curation.sieve import Sieve
from components.data.curation.statistics import Frame, Statistics
from components.data.curation.suite import Expectation, validate
from components.data.document import Document
from components.data.spool import Documents, Spool
from components.errors import DataError
from components.plugins import load, name_of

COPIES = ("duplicate", "near_duplicate")


class Config(Bounds):
    """What a document must be to be kept, and what may be set aside of a source before it is refused."""

    near_duplicates: Likeness | None = Likeness()
    """When two documents are almost the same; null keeps both."""

    contamination: Contamination | None = Contamination()
    """How much of a held-out document or evaluation set a training document may hold; null looks for none."""

    private: Privacy | None = Privacy()
    """What becomes of secrets and personal data; null looks for none."""

    max_set_aside_share: float = Field(default=0.2, ge=0, le=1)
    """With more set aside than this, copies and leaks not counted, the whole source is refused."""

    max_copies_share: float = Field(default=0.7, ge=0, le=1)
    """The same for exact and near copies: half of the open web is copies, so more than that may be sound."""

    max_contaminated_share: float = Field(default=0.2, ge=0, le=1)
    """The same for leaks, of what was left: with more, the split is not one."""

    sample_rows: int = Field(default=10_000, ge=1)
    """Documents that Great Expectations sees one by one."""

    max_groups: int = Field(default=1_000, ge=2)
    """Groups of documents that it sees by their extremes; when there are more, neighbours join."""


def curate(
    documents: Iterable[Document],
    config: Config,
    *,
    scratch: Path | None = None,
    split_of: Callable[[Document], str] | None = None,
) -> Checked:
    """Set bad documents aside with a reason, then ask the suite of what is left.

    Kept documents lie in the `scratch` folder, or without one in a list, for what fits memory. Without
    `split_of` nothing counts as held out, and only evaluation sets are screened for.
    """
    screen = _screen(config.contamination)
    statistics = Statistics(rules(config), sample_rows=config.sample_rows, max_groups=config.max_groups)
    with _store(scratch, "passed") as store:
        sieve = Sieve(rules(config), store, statistics, alike=config.near_duplicates, policy=config.private)
        for document in documents:
            if sieve.keep(document) and screen and split_of and split_of(document) == "held_out":
                screen.protect(document.text, document.key, screen.config.held_out_passage)
    passed = _documents(store)
    if not statistics.documents:
        reasons = dict(Counter(one.reason for one in sieve.left_out)) or "the source gave none"
        raise DataError(f"no document was kept: {reasons}; choose another data.source or loosen data.checks")
    kept, leaks = _without_leaks(passed, screen, scratch, split_of)
    left_out = sieve.left_out + leaks
    report = _verdict(statistics, left_out, kept, config) | _figures(sieve, screen, left_out, config)
    return Checked(kept, left_out, report, sieve.digest.hexdigest(), sieve.characters)


def _screen(config: Contamination | None) -> Screen | None:
    """A screen that holds the evaluation sets."""
    if config is None:
        return None
    screen = Screen(config)
    for name, source in config.evaluation_sets.items():
        for document in load("components.data.sources", name_of(source)).read(source):
            screen.protect(document.text, name, config.evaluation_passage)
    return screen


def _without_leaks(
    passed: Kept, screen: Screen | None, scratch: Path | None, split_of: Callable[[Document], str] | None
) -> tuple[Kept, list[SetAside]]:
    if not screen or not screen.protected:
        return passed, []
    for number, document in enumerate(passed):
        screen.look(number, document.text, may_leak=not split_of or split_of(document) != "held_out")
    leaks = screen.leaks()
    left_out: list[SetAside] = []
    if not leaks:
        return passed, []
    with _store(scratch, "kept") as store:
        for number, document in enumerate(passed):
            if of := leaks.get(number):
                left_out.append(set_aside(document, "contaminated", of=of))
            else:
                store.append(document)
    if isinstance(passed, Documents):
        passed.remove()
    return _documents(store), left_out


def _store(scratch: Path | None, name: str) -> Any:
    return Spool(scratch / f"{name}.jsonl") if scratch else nullcontext([])


def _documents(store: Spool | list[Document]) -> Kept:
    return store.documents() if isinstance(store, Spool) else store


def _verdict(statistics: Statistics, left_out: list[SetAside], kept: Kept, config: Config) -> dict[str, Any]:
    frames = {
        "documents": statistics.sample(),
        "groups": statistics.groups(),
        "totals": _totals(left_out, len(kept), config),
    }
    found = {name: validate(name, frame, expected) for name, (frame, expected) in frames.items()}
    report: dict[str, Any] = {name: [asdict(one) for one in made] for name, made in found.items()}
    report["success"] = all(finding.success for made in found.values() for finding in made)
    return report


def _totals(left_out: list[SetAside], kept: int, config: Config) -> tuple[Frame, list[Expectation]]:
    reasons = Counter(one.reason for one in left_out)
    read, leaks = kept + len(left_out), reasons["contaminated"]
    copies = sum(reasons[reason] for reason in COPIES)
    shares = {
        "set_aside_share": ((len(left_out) - copies - leaks) / read, config.max_set_aside_share),
        "copies_share": (copies / read, config.max_copies_share),
        "contaminated_share": (leaks / (kept + leaks), config.max_contaminated_share),
    }
    return {name: [share] for name, (share, _) in shares.items()}, [
        Expectation("ExpectColumnMaxToBeBetween", {"column": name, "max_value": most})
        for name, (_, most) in shares.items()
    ]


def _figures(sieve: Sieve, screen: Screen | None, left_out: list[SetAside], config: Config) -> dict[str, Any]:
    """What was found, for the report: counts only, so that it is the same for the same corpus."""
    alike = [one.of for one in left_out if one.reason == "near_duplicate"]
    leaks = Counter(one.of for one in left_out if one.reason == "contaminated")
    sets = config.contamination.evaluation_sets if config.contamination else {}
    return {
        "read": sieve.statistics.documents + len(sieve.left_out),
        "set_aside": dict(sorted(Counter(one.reason for one in left_out).items())),
        "near_duplicates": {"documents": len(alike), "clusters": len(set(alike))},
        "contamination": {
            "protected": screen.protected if screen else 0,
            "unscreened": screen.unscreened if screen else 0,
            "documents": leaks.total(),
            "of": {name: leaks[name] for name in sorted(sets)}
            | {"held_out": sum(count for of, count in leaks.items() if of not in sets)},
        },
        "private": {
            kind: {"found": count, "documents": sieve.private_documents[kind]}
            for kind, count in sorted(sieve.private_found.items())
        },
    }
