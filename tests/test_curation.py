"""Documents are checked as they stream by, and the suite says the same of all of them."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from components.data.curation import curate, suite
from components.data.curation.checked import set_aside
from components.data.curation.facts import Facts, facts_of
from components.data.curation.rules import Rule, rules
from components.data.curation.statistics import Statistics
from components.data.curation.suite import Expectation
from components.data.document import Document, document_of
from components.data.sources import python_stdlib
from components.errors import DataError

CHECKS = curate.Config()
RULES = rules(CHECKS)
SIZE = 250_000
REAL = [
    one
    for one in python_stdlib.read(python_stdlib.Config(max_documents=40))
    if 1_000 < len(one.text) < 90_000
]


def document(text: str, path: str = "a.py") -> Document:
    return document_of(text.encode(), path)


GOOD = [
    document(f"def function_{i}(x):\n    return x + {i}  # number {i * i * 7919}\n" * 2) for i in range(30)
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("x = 1\n", "too_short"),
        ("x = 1  # long\n" * 80_000, "too_long"),
        ("def f():\n    return 1\n" * 9 + "\0", "not_text"),
        ("".join(map(chr, range(1, 9))) * 9 + GOOD[0].text, "unprintable"),
        ("".join(map(chr, range(33, 113))), "incompressible"),
        ("spam " * 5000, "repetitive"),
    ],
)
def test_a_bad_document_is_set_aside_with_its_reason(text: str, reason: str) -> None:
    bad = document(text)
    checked = curate.curate([*GOOD, bad], CHECKS)
    assert checked.set_aside == [set_aside(bad, reason)]
    assert checked.kept == GOOD
    assert checked.report["success"]


def test_the_suite_fails_exactly_the_documents_that_a_rule_sets_aside() -> None:
    bad = [document("x = 1\n"), document("spam " * 5000), document("\x01" * 99)]
    rows = [facts_of(one) for one in [*GOOD, *bad]]
    for rule in rules(CHECKS):
        broken = sum(rule.reason(row) is not None for row in rows)
        column = {rule.column: [getattr(row, rule.column) for row in rows]}
        (finding,) = suite.validate("rows", column, [rule.expectation])
        assert finding.observed == f"{broken} of {len(rows)} do not"
        assert finding.success == (broken == 0)


def test_a_source_of_which_too_much_is_set_aside_fails_its_suite() -> None:
    checked = curate.curate([*GOOD, *(document(f"x = {i}") for i in range(20))], CHECKS)
    failed = [verdict for verdict in checked.verdicts if not verdict.passed]
    assert [verdict.gate for verdict in failed] == ["totals_are_sound"]
    assert "set_aside_share" in failed[0].reason


def test_the_suite_sees_a_bounded_number_of_rows_and_still_speaks_for_all() -> None:
    checked = curate.curate(GOOD, curate.Config(sample_rows=10, max_groups=4))
    (rows,) = (one for one in checked.report["documents"] if one["expectation"].startswith("table_row_count"))
    (total,) = (one for one in checked.report["groups"] if one["expectation"].startswith("column_sum"))
    assert (rows["observed"], total["observed"]) == ("10", str(len(GOOD)))
    assert len(checked.kept) == len(GOOD)


@pytest.mark.parametrize("documents", [10, 1_000, 30_000])
def test_frames_have_as_many_rows_for_any_corpus(documents: int) -> None:
    statistics = Statistics(rules(CHECKS), sample_rows=500, max_groups=64)
    for number in range(documents):
        statistics.add(facts_of_number(number))
    (sample, _), (groups, _) = statistics.sample(), statistics.groups()
    assert len(sample["key"]) == min(documents, 500)
    assert min(documents, 32) <= len(groups["documents"]) <= 64
    assert {len(column) for column in groups.values()} == {len(groups["documents"])}
    assert sum(groups["documents"]) == documents


@pytest.mark.parametrize("place", [0, 4_321, 9_999])
def test_one_bad_document_among_ten_thousand_is_seen_in_its_group(place: int) -> None:
    statistics = Statistics(rules(CHECKS), sample_rows=100, max_groups=50)
    for number in range(10_000):
        made = facts_of_number(number)
        statistics.add(replace(made, characters=3) if number == place else made)
    findings = suite.validate("groups", *statistics.groups())
    assert [one.column for one in findings if not one.success] == ["characters_min"]


def test_the_sample_is_the_same_in_whatever_order_documents_come() -> None:
    made = [facts_of_number(number) for number in range(1_000)]
    samples = []
    for order in (made, made[::-1]):
        statistics = Statistics(rules(CHECKS), sample_rows=50, max_groups=8)
        for one in order:
            statistics.add(one)
        samples.append(statistics.sample()[0])
    assert samples[0] == samples[1]


def facts_of_number(number: int) -> Facts:
    return Facts(
        f"{number:016x}", f"{number}.py", sha256(str(number).encode()).hexdigest(), 500 + number, 1, 1.0, 3.0
    )


def drawn_facts(draw: random.Random, number: int) -> Facts:
    """Of a document that may break any rule, on either side and right at its bounds, or be unknown."""
    share, ratio = draw.choice([0.5, 0.9899, 0.99, 1.0]), draw.choice([0.9, 1.0, 3.0, 10.0, 10.1])
    return replace(
        facts_of_number(number),
        characters=draw.choice([0, 10, 63, 64, 65, 5_000, 1_000_000, 1_000_001]),
        is_text=int(draw.random() < 0.9),
        printable_share=None if draw.random() < 0.03 else share,
        compression_ratio=None if draw.random() < 0.03 else ratio,
        forbidden=int(draw.random() < 0.1),
    )


def agreeing(frames: int, seed: int) -> tuple[int, int]:
    """Frames on which every rule and its expectations agree, and how many of them are sound throughout."""
    draw, agreed, sound = random.Random(seed), 0, 0
    for _ in range(frames):
        rows = [drawn_facts(draw, number) for number in range(draw.randrange(2, 40))]
        if draw.random() < 0.5:
            rows = [one for one in rows if not any(rule.reason(one) for rule in RULES)] or rows[:1]
        statistics = Statistics(RULES, sample_rows=100, max_groups=draw.randrange(2, 12))
        for one in rows:
            statistics.add(one)
        said = {rule: not any(rule.reason(one) for one in rows) for rule in RULES}
        agreed += said == found_by_rows(rows) == found_by_groups(statistics)
        sound += all(said.values())
    return agreed, sound


def found_by_rows(rows: list[Facts]) -> dict[Rule, bool]:
    """Unknown facts fail the expectation that none is null, as in the suite; the others skip them."""
    frame = {rule.column: [getattr(one, rule.column) for one in rows] for rule in RULES}
    known = {name: Expectation("ExpectColumnValuesToNotBeNull", {"column": name}) for name in frame}
    if any(set(column) == {None} for column in frame.values()):
        return {rule: not any(rule.reason(one) for one in rows) for rule in RULES}
    asked = [*known.values(), *(rule.expectation for rule in RULES)]
    findings = suite.validate("rows", frame, asked)
    filled = {one.column for one in findings[: len(known)] if one.success}
    bounds = zip(RULES, findings[len(known) :], strict=True)
    return {rule: one.success and rule.column in filled for rule, one in bounds}


def found_by_groups(statistics: Statistics) -> dict[Rule, bool]:
    frame, _ = statistics.groups()
    found = iter(suite.validate("groups", frame, [one for rule in RULES for one in rule.of_groups]))
    return {rule: all([next(found).success for _ in rule.of_groups]) for rule in RULES}


@pytest.mark.parametrize("frames", [15, pytest.param(40, marks=pytest.mark.slow)])
def test_rules_on_a_stream_and_the_suite_on_rows_and_groups_agree(frames: int) -> None:
    agreed, sound = agreeing(frames, seed=frames)
    assert agreed == frames
    assert frames / 5 < sound < frames * 4 / 5


@pytest.mark.parametrize("scratch", [False, True])
def test_a_copy_is_set_aside_and_names_the_first(tmp_path: Path, scratch: bool) -> None:
    first, *others = REAL
    almost = document(first.text.replace(first.text.split()[40], "changed", 1), "almost.py")
    read = [first, *others, first, almost]
    checked = curate.curate(read, CHECKS, scratch=tmp_path if scratch else None)
    assert list(checked.kept) == REAL
    assert [(one.reason, one.of) for one in checked.set_aside] == [
        ("duplicate", first.key),
        ("near_duplicate", first.key),
    ]
    assert checked.documents == len(read)
    assert checked.report["near_duplicates"] == {"documents": 1, "clusters": 1}
    assert json.loads(json.dumps(checked.report)) == checked.report


def test_too_many_copies_fail_the_suite_and_can_be_allowed() -> None:
    read = [one for one in REAL for _ in range(5)]
    checked = curate.curate(read, CHECKS)
    assert ["copies_share" in one.reason for one in checked.verdicts if not one.passed] == [True]
    assert curate.curate(read, curate.Config(max_copies_share=0.8)).report["success"]


def test_near_copies_can_be_kept() -> None:
    almost = document(REAL[0].text.replace(REAL[0].text.split()[40], "changed", 1), "almost.py")
    checked = curate.curate([*REAL, almost], curate.Config(near_duplicates=None))
    assert list(checked.kept) == [*REAL, almost]


def test_a_run_after_a_killed_one_gives_the_same(tmp_path: Path) -> None:
    whole = curate.curate(REAL, CHECKS, scratch=tmp_path / "whole")

    def killed() -> Iterator[Document]:
        yield from REAL[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        curate.curate(killed(), CHECKS, scratch=tmp_path / "again")
    again = curate.curate(REAL, CHECKS, scratch=tmp_path / "again")
    assert list(again.kept) == list(whole.kept) == REAL
    assert (again.report, again.digest) == (whole.report, whole.digest)


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    curate.curate(long_documents(2), CHECKS, scratch=tmp_path)
    peaks = []
    for count in (5, 20):
        tracemalloc.start()
        curate.curate(long_documents(count), CHECKS, scratch=tmp_path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 15 * SIZE / 10


def long_documents(count: int) -> Iterator[Document]:
    words = sorted({word for one in REAL for word in one.text.split()})
    for number in range(count):
        draw = random.Random(number)
        yield document(" ".join(draw.choices(words, k=SIZE // 8))[:SIZE], f"{number}.txt")


@pytest.mark.parametrize(
    ("documents", "message"), [([], "the source gave none"), ([document("x")], "too_short")]
)
def test_a_source_without_a_usable_document_is_an_error(documents: list[Document], message: str) -> None:
    with pytest.raises(DataError, match=message):
        curate.curate(documents, CHECKS)


NOT_NULL = Expectation("ExpectColumnValuesToNotBeNull", {"column": "a"})


@pytest.mark.parametrize(
    ("columns", "asked", "message"),
    [
        ({"a": []}, [NOT_NULL], "no row"),
        ({}, [NOT_NULL], "no row"),
        ({"a": [1], "b": [None]}, [NOT_NULL], "'b' of frame is all null"),
        ({"a": [1]}, [], "empty suite"),
        ({"a": [1]}, [Expectation("ExpectColumnValuesToNotBeNull", {"column": "z"})], "broke instead"),
    ],
    ids=["no rows", "no columns", "all null", "no expectation", "no such column"],
)
def test_nothing_passes_on_nothing(
    columns: dict[str, list[int | None]], asked: list[Expectation], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        suite.validate("frame", columns, asked)


def test_an_expectation_that_was_not_evaluated_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_ask", lambda *_: [])
    with pytest.raises(DataError, match="0 of 1 expectations"):
        suite.validate("frame", {"a": [1]}, [NOT_NULL])
