"""Case studies: the frame judges and prices honestly, pages stand alone, incidents show what they say."""

from __future__ import annotations

import json
import os
import random
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from components import plugins, study
from components.config import Profile, check, configure, profile_names
from components.observability import study_page
from components.observability.timeline import timeline
from components.records import RunFolder, git_commit
from components.study import (
    ANCHORS,
    Case,
    Event,
    Result,
    Scale,
    Side,
    Span,
    Study,
    cost_at_scale,
    hours_lost,
    interval,
    judge_numbers,
)

STUDIES = plugins.names("case_studies")
DRAWN = 3
SCALE = Scale(share=(0.1, 0.2), hours_without=(1, 2), hours_with=(0.1, 0.2), reasons="said so")


def drawn(commit: str | None) -> list[str]:
    """The studies whose turn it is with this commit."""
    if os.environ.get("STANCHION_STUDIES") == "all":
        return STUDIES
    return random.Random((commit or "")[:8]).sample(STUDIES, DRAWN)


def made(numbers: dict[str, float] | None = None) -> Study:
    side = Side(
        summary="It stood still.",
        spans=[Span(start=0, end=4, state="healthy", text="trains"), Span(start=4, end=9, state="harmed")],
        events=[Event(at=4, text="rank 1 <blocks>", kind="fault"), Event(at=4.2, text="seen", kind="seen")],
        progress=[(1, 1), (2, 2), (3, 3)],
    )
    return Study(
        without=side, with_pattern=side, numbers=numbers or {"seconds": 2.0}, verdict="Named after 2 s."
    )


def result_of(numbers: dict[str, float], name: str = "stall") -> Result:
    case = Case(
        name=name,
        title="Nothing moves",
        pattern="Heartbeat by Progress",
        story=["It stood.", "Symptom: all `green`."],
        checklist=["Watch steps."],
        carries_over=("yes", "The loop is the same."),
        expect={"seconds": (0, 5)},
        scale=SCALE,
    )
    return Result(
        case=case,
        study=made(numbers),
        verdicts=judge_numbers(numbers, case.expect),
        cost=cost_at_scale(SCALE),
        profile="laptop",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=60,
        commit=None,
        machine={"processor": "2 x test"},
    )


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_says_what_it_is(name: str) -> None:
    case = Case.of(plugins.load("case_studies", name))
    labels = {paragraph.partition(":")[0] for paragraph in case.story[1:]}
    assert {"Symptom", "Timeline", "Cause", "Sources", "The drill"} <= labels
    assert len(case.checklist) >= 3
    assert case.expect


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_fits_every_shipped_profile(name: str, profile: str) -> None:
    check(plugins.load("case_studies", name).RUN, configure(profile)[1])


@pytest.mark.parametrize("name", STUDIES)
def test_the_pattern_of_a_study_stands_in_the_code(name: str) -> None:
    pattern = plugins.load("case_studies", name).PATTERN
    sources = (path.read_text() for path in Path(study.__file__).parent.rglob("*.py"))
    assert any(f"\nPattern: {pattern}\n" in source for source in sources)


def test_commits_draw_different_studies_and_in_the_end_all() -> None:
    turns = [drawn(f"{number:08x}") for number in range(40)]
    assert all(len(set(turn)) == DRAWN for turn in turns)
    assert {name for turn in turns for name in turn} == set(STUDIES)
    assert drawn("0badf00d+changes") == drawn("0badf00d")


def test_a_number_outside_its_range_fails_the_study() -> None:
    assert result_of({"seconds": 5.0}).passed
    late = result_of({"seconds": 5.1})
    assert not late.passed
    assert late.verdicts[0].reason == "5.10 is not within at most 5"


def test_what_was_not_measured_or_has_no_range_fails_too() -> None:
    missing, unasked, nan = judge_numbers({"b": 1.0, "c": float("nan")}, {"a": (0, 1), "c": (0, None)})[:3]
    assert not missing.passed
    assert not unasked.passed
    assert not nan.passed


def test_ranges_read_like_sentences() -> None:
    assert interval((2, None)) == "at least 2"
    assert interval((0, 5)) == "at most 5"
    assert interval((3, 3)) == "exactly 3"
    assert interval((0.5, 1)) == "0.50 to 1"


def test_cost_is_a_range_over_published_failure_rates() -> None:
    cost = cost_at_scale(SCALE, gpus=1024, price=(2.0, 4.0))
    assert set(cost.without) == {anchor.name for anchor in ANCHORS}
    failures = 3.79 / 1000 * 128 * 30
    low, high = cost.without["Llama 3 405B"]
    assert low == pytest.approx(failures * 0.1 * 1 * 1024 * 2.0)
    assert high == pytest.approx(failures * 0.2 * 2 * 1024 * 4.0)
    assert cost.incidents["Llama 3 405B"] == pytest.approx((failures * 0.1, failures * 0.2))
    assert cost.hours_without["Llama 3 405B"] == pytest.approx((failures * 0.1 * 1, failures * 0.2 * 2))
    (low, high), (with_low, _) = cost.overall
    assert with_low < low < high


def test_damage_seen_late_costs_what_retention_no_longer_holds() -> None:
    lost = partial(hours_lost, interval=1.0, kept=3, archived_every=24.0, restart=0.5)
    assert lost(seen_after=0) == (1.5, 1.5)
    assert lost(seen_after=1.9) == pytest.approx((3.4, 3.4))
    assert lost(seen_after=2) == (3.5, 26.5)
    assert lost(seen_after=12) == (13.5, 36.5)
    assert lost(seen_after=12, kept=14) == (13.5, 13.5)


def test_the_published_rate_of_llama_follows_from_its_counts() -> None:
    rate = next(one for one in ANCHORS if one.name.startswith("Llama")).failures_per_1000_node_days
    assert rate == pytest.approx(419 / (16384 / 8 * 54) * 1000, rel=0.001)


def test_pages_and_gallery_stand_alone(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "case-studies")
    study_page.publish(folder, result_of({"seconds": 9.0}, "late"))
    urls = study_page.publish(folder, result_of({"seconds": 2.0}))
    page, gallery = Path(urls["page"]).read_text(), Path(urls["gallery"]).read_text()
    for text in (page, gallery):
        outside = set(re.findall(r"https?://[^\"' )<]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not outside
        assert "<script" not in text
        assert "prefers-color-scheme: dark" in text
        assert "rank 1 &lt;blocks&gt;" in text
    assert "<code>green</code>" in page
    assert "1 of 2 show what they say" in gallery
    assert "hours without" in page
    assert "✗" in Path(urls["page"]).with_name("late.html").read_text()


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "case-studies")
    result = result_of({"seconds": 2.0})
    study_page.publish(folder, result)
    assert study_page.results(folder) == [result]


def test_kept_results_are_figures_and_a_picture_that_stands_alone(tmp_path: Path) -> None:
    study_page.keep(tmp_path, result_of({"seconds": 2.0}))
    kept = json.loads((tmp_path / "stall.json").read_text())
    assert kept["machine"]
    assert kept["at"].startswith("2026-01-01")
    assert "--ink:" in (tmp_path / "stall.svg").read_text()


def test_the_timeline_draws_a_side_without_progress() -> None:
    empty = Side(summary="", spans=[Span(start=0, end=0.5, state="harmed")])
    assert timeline(made().model_copy(update={"without": empty}), "X").startswith("<svg")


@pytest.mark.usefixtures("prefect_server")
def test_a_study_that_fails_leaves_a_refused_record_with_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.run_case_study import run_case_study

    told = plugins.load("case_studies", "silent_stall")
    fake = SimpleNamespace(**{key: getattr(told, key) for key in dir(told) if key.isupper()})
    fake.__doc__, fake.__name__, fake.__file__ = told.__doc__, "case_studies.silent_stall", told.__file__
    fake.study = lambda profile, folder: made({"seconds to detect": 99.0})
    monkeypatch.setattr(study, "load", lambda package, name: fake)
    laptop = Profile.model_validate("laptop")
    profile = laptop.model_copy(update={"storage": laptop.storage.model_copy(update={"root": str(tmp_path)})})
    record = run_case_study("silent_stall", profile)
    assert record.status == "refused"
    assert any(not verdict.passed for verdict in record.verdicts)
    assert Path(record.output("page").url).exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("name", STUDIES)
def test_the_incident_shows_what_it_says(name: str, tmp_path: Path) -> None:
    """All of them take ten minutes: each commit draws some, `make bench` runs all."""
    if name not in drawn(git_commit()):
        pytest.skip("another commit draws it; STANCHION_STUDIES=all runs all, and so does `make bench`")
    from flows.run_case_study import run_case_study

    laptop = Profile.model_validate("laptop")
    profile = laptop.model_copy(update={"storage": laptop.storage.model_copy(update={"root": str(tmp_path)})})
    record = run_case_study(name, profile)
    assert [verdict for verdict in record.verdicts if not verdict.passed] == []
    assert record.status == "completed"
    assert record.stage == f"case_study.{name}"
    assert all(fault.recovered and fault.seconds_to_detect is not None for fault in record.faults)
    assert record.faults
