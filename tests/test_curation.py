"""Documents are checked as they stream by, and the suite says the same of all of them."""

from __future__ import annotations

import pytest

from components.data.curation import curate, suite
from components.data.curation.checked import set_aside
from components.data.curation.facts import facts_of
from components.data.curation.suite import Expectation
from components.data.document import Document, document_of
from components.errors import DataError

CHECKS = curate.Config()


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
        (GOOD[3].text, "duplicate"),
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
    for rule in curate.rules(CHECKS):
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


def test_the_frame_stays_small_when_the_corpus_grows() -> None:
    checked = curate.curate(GOOD, curate.Config(sample_rows=10))
    (rows,) = (one for one in checked.report["documents"] if one["expectation"].startswith("table_row_count"))
    assert rows["observed"] == "10"
    assert len(checked.kept) == len(GOOD)


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
