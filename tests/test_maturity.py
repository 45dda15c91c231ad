"""Criteria find what the records say, and scores follow from findings by rules."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maturity import report, scoring
from maturity.evidence import Evidence, read
from maturity.model import AXES, DIMENSIONS, LEVELS, RISK_WEIGHTS, Criterion, Finding, Outcome, criteria

Records = dict[str, dict[str, Any]]

CRITERIA = {one.name: one for one in criteria()}


def artifact(name: str) -> dict[str, str]:
    return {"name": name, "url": f"runs/demo/{name}", "digest": f"digest-of-{name}"}


def verdict(gate: str, passed: bool = True, **figures: float) -> dict[str, Any]:
    return {"gate": gate, "passed": passed, "reason": "figures agree", "figures": figures}


def record(stage: str, reads: list[str], makes: list[str], **extra: Any) -> dict[str, Any]:
    return {
        "stage": stage,
        "run_id": "demo-1",
        "status": "completed",
        "inputs": [artifact(name) for name in reads],
        "outputs": [artifact(name) for name in makes],
        "metrics": {},
        "verdicts": [],
        "faults": [],
        "device_seconds": 60.0,
        "cost": 0.01,
        "currency": "USD",
        **extra,
    }


def fault(kind: str, **extra: Any) -> dict[str, Any]:
    return {"kind": kind, "detail": "8 of 8 flips refused", "recovered": True, **extra}


@pytest.fixture
def proven() -> Records:
    """Records of a run and of two drills that prove every claim."""
    timed = {"data": 1.0, "forward": 20.0, "backward": 40.0, "optimizer": 9.0}
    answers = [verdict("answers_are_known"), verdict("logprobs_match_trainer")]
    aligned = [verdict("reward_improved"), verdict("policy_did_not_cheat")]
    finite = [verdict("weights_are_finite")]
    stall = fault("stall", rank=1, seconds_to_detect=4.2)
    skipping = {"on_fault": "skip", "max_documents": 10, "max_share": 0.001}
    position = {"manifest_sha256": "digest-of-shards", "samples_consumed": 400, "batch_size": 8}
    rotten = ("silent share, checked reader", "refused share, check", "steps trained on a wrong sample")
    made = [
        record(
            "shard_dataset", [], ["shards"], metrics={"shards": 6, "documents_per_split": {"train": 4000}}
        ),
        record(
            "pretrain",
            ["shards"],
            ["checkpoint"],
            verdicts=[verdict("loss_reproduces")],
            config={"training": {"damaged_samples": skipping}},
            metrics={"seconds_by_phase": timed, "dropped_samples": 3, "step": 50, "position": position},
        ),
        record("sft", ["checkpoint", "shards"], ["sft_policy"], verdicts=finite),
        record("rl", ["sft_policy"], ["policy"], verdicts=aligned, metrics={"kl": 0.07}),
        record("deploy", ["policy"], ["weights", "deployment"], verdicts=answers),
        record(
            "case_study.silent_stall", [], ["study"], verdicts=[verdict("right rank named")], faults=[stall]
        ),
        record(
            "case_study.rotten_checkpoint",
            [],
            ["study"],
            verdicts=[verdict("flips tried", value=40), verdict("refused share, sealed")],
            faults=[fault("corruption")],
        ),
        record(
            "case_study.rotten_shard",
            [],
            ["study"],
            verdicts=[verdict("flips tried", value=40), *map(verdict, rotten)],
            faults=[fault("corruption")],
        ),
    ]
    return {one["stage"]: one for one in made}


def found(name: str, records: Records) -> Finding:
    return CRITERIA[name].find(Evidence.of(records.values()))


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_is_a_documented_claim(name: str) -> None:
    one = CRITERIA[name]
    assert one.claim[0].isupper()
    assert one.why, f"{name} does not say why"
    assert one.how, f"{name} does not say how"
    assert one.question.endswith("?")
    assert one.remedy.endswith("effort).")
    assert one.pattern
    assert one.dimension in DIMENSIONS
    assert one.level in range(1, 6)
    assert one.risk in RISK_WEIGHTS
    assert one.axis in AXES


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_is_proved_by_good_records(name: str, proven: Records) -> None:
    finding = found(name, proven)
    assert finding.outcome is Outcome.TRUE, finding.excerpt
    assert finding.where.startswith("demo-1/")


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_knows_nothing_without_records(name: str) -> None:
    assert found(name, {}).outcome is Outcome.UNKNOWN


def no_shard_count(records: Records) -> None:
    records["shard_dataset"]["metrics"] = {}


def strange_shards(records: Records) -> None:
    records["pretrain"]["inputs"][0]["digest"] = "another"


def no_phases(records: Records) -> None:
    records["pretrain"]["metrics"] = {"seconds_by_phase": {"step": 70.0}}


def nameless_stall(records: Records) -> None:
    records["case_study.silent_stall"]["faults"][0]["rank"] = None


def stall_without_recovery(records: Records) -> None:
    records["case_study.silent_stall"]["faults"][0]["recovered"] = False


def drill_claim_missed(records: Records) -> None:
    records["case_study.silent_stall"]["verdicts"].append(verdict("processes left", passed=False))


def wrong_rank_named(records: Records) -> None:
    records["case_study.silent_stall"]["verdicts"] = [verdict("right rank named", passed=False)]


def drill_without_a_verdict(records: Records) -> None:
    records["case_study.rotten_checkpoint"]["verdicts"] = []


def flip_not_noticed(records: Records) -> None:
    records["case_study.rotten_checkpoint"]["faults"] = []


def drill_failed(records: Records) -> None:
    records["case_study.rotten_checkpoint"]["status"] = "failed"


def flipped_sample_read(records: Records) -> None:
    records["case_study.rotten_shard"]["verdicts"][1]["passed"] = False


def wrong_sample_not_looked_for(records: Records) -> None:
    del records["case_study.rotten_shard"]["verdicts"][3]


def shard_not_rebuilt(records: Records) -> None:
    records["case_study.rotten_shard"]["faults"][0]["recovered"] = False


def drops_not_counted(records: Records) -> None:
    del records["pretrain"]["metrics"]["dropped_samples"]


def dropped_unasked(records: Records) -> None:
    records["pretrain"]["config"]["training"]["damaged_samples"]["on_fault"] = "fail"


def dropped_too_many(records: Records) -> None:
    records["pretrain"]["metrics"]["dropped_samples"] = 11


def dropped_too_large_a_share(records: Records) -> None:
    records["shard_dataset"]["metrics"]["documents_per_split"] = {"train": 2999}


def dropped_of_nobody_knows_how_many(records: Records) -> None:
    del records["shard_dataset"]


def no_position(records: Records) -> None:
    del records["pretrain"]["metrics"]["position"]


def position_in_another_data_set(records: Records) -> None:
    records["pretrain"]["metrics"]["position"]["manifest_sha256"] = "another"


def samples_read_twice(records: Records) -> None:
    records["pretrain"]["metrics"]["position"]["samples_consumed"] += 8


def no_known_answer(records: Records) -> None:
    records["deploy"]["verdicts"] = [verdict("load_is_served")]


def checkpoint_not_gated(records: Records) -> None:
    records["pretrain"]["verdicts"] = []


def checkpoint_refused(records: Records) -> None:
    records["pretrain"]["verdicts"] = [verdict("loss_reproduces", passed=False)]


def weights_from_nowhere(records: Records) -> None:
    records["deploy"]["inputs"][0]["digest"] = "another"


def no_price(records: Records) -> None:
    records["rl"]["cost"] = 0.0


def no_drift(records: Records) -> None:
    records["rl"]["metrics"] = {}


def drift_not_gated(records: Records) -> None:
    records["rl"]["verdicts"] = [verdict("reward_improved")]


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("every_shard_is_in_a_manifest", no_shard_count),
        ("every_shard_is_in_a_manifest", strange_shards),
        ("step_time_is_broken_down", no_phases),
        ("stalls_are_named", nameless_stall),
        ("stalls_are_named", stall_without_recovery),
        ("stalls_are_named", drill_claim_missed),
        ("stalls_are_named", wrong_rank_named),
        ("flipped_bits_are_refused", drill_without_a_verdict),
        ("flipped_bits_are_refused", flip_not_noticed),
        ("flipped_bits_are_refused", drill_failed),
        ("damaged_samples_are_refused", flipped_sample_read),
        ("damaged_samples_are_refused", wrong_sample_not_looked_for),
        ("damaged_samples_are_refused", shard_not_rebuilt),
        ("left_out_samples_are_counted", drops_not_counted),
        ("left_out_samples_are_counted", dropped_unasked),
        ("left_out_samples_are_counted", dropped_too_many),
        ("left_out_samples_are_counted", dropped_too_large_a_share),
        ("left_out_samples_are_counted", dropped_of_nobody_knows_how_many),
        ("samples_read_are_known", no_position),
        ("samples_read_are_known", position_in_another_data_set),
        ("samples_read_are_known", samples_read_twice),
        ("ready_means_a_known_answer", no_known_answer),
        ("only_gated_checkpoints_are_used", checkpoint_not_gated),
        ("only_gated_checkpoints_are_used", checkpoint_refused),
        ("only_gated_checkpoints_are_used", weights_from_nowhere),
        ("runs_have_a_price", no_price),
        ("policy_drift_is_bounded", no_drift),
        ("policy_drift_is_bounded", drift_not_gated),
    ],
)
def test_a_criterion_is_disproved_by_bad_records(
    name: str, spoil: Callable[[Records], None], proven: Records
) -> None:
    spoil(proven)
    assert found(name, proven).outcome is Outcome.FALSE


def test_every_criterion_has_failing_evidence_in_this_file() -> None:
    marks = test_a_criterion_is_disproved_by_bad_records.pytestmark  # type: ignore[attr-defined]
    assert {name for name, _ in marks[0].args[1]} == set(CRITERIA)


def test_a_served_model_that_was_never_aligned_needs_no_drift_bound(proven: Records) -> None:
    proven["deploy"]["inputs"] = [artifact("checkpoint")]
    assert found("policy_drift_is_bounded", {"deploy": proven["deploy"]}).outcome is Outcome.NOT_APPLICABLE


def test_a_run_that_broke_before_alignment_does_not_escape_the_question(proven: Records) -> None:
    assert found("policy_drift_is_bounded", {"pretrain": proven["pretrain"]}).outcome is Outcome.UNKNOWN


def test_a_criterion_that_breaks_has_found_nothing() -> None:
    def broken(evidence: Evidence) -> Finding:
        raise KeyError("metrics")

    one = _claim("broken", check=broken)
    card = scoring.score(Evidence.of([]), [one])
    assert card.judged[0][1].outcome is Outcome.ERROR
    assert card.known == 0
    assert card.applicable == 1
    assert card.level == 0


def test_only_the_inventory_says_not_applicable() -> None:
    one = _claim("lazy", check=lambda evidence: Finding(Outcome.NOT_APPLICABLE, "not for us"))
    assert one.find(Evidence.of([])).outcome is Outcome.ERROR


def test_records_in_any_order_give_the_same_bytes(proven: Records) -> None:
    records = list(proven.values())
    first = report.as_json(scoring.score(Evidence.of(records)))
    for seed in range(5):
        random.Random(seed).shuffle(records)
        again = Evidence.of(copy.deepcopy(records) + records[:2])
        assert report.as_json(scoring.score(again)) == first


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(metrics=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False) | st.text(max_size=8)))
def test_unrelated_evidence_changes_no_finding(metrics: dict[str, Any], proven: Records) -> None:
    stranger = record("case_study.something_else", [], ["figures"], metrics=metrics)
    before = scoring.score(Evidence.of(proven.values()))
    after = scoring.score(Evidence.of([*proven.values(), stranger]))
    assert after.as_dict()["criteria"] == before.as_dict()["criteria"]
    assert after.level == before.level


def test_good_records_prove_every_covered_dimension(proven: Records) -> None:
    card = scoring.score(Evidence.of(proven.values()))
    scored = [one for one in card.dimensions if one.status == "scored"]
    assert all(one.score == 1.0 for one in scored)
    assert (card.known, card.applicable) == (len(CRITERIA), len(CRITERIA))
    assert set(card.axes.values()) == {1.0}
    assert card.gaps == []


def test_a_drill_that_was_never_run_is_missing_coverage_and_caps_the_platform(proven: Records) -> None:
    before = scoring.score(Evidence.of(proven.values()))
    del proven["case_study.silent_stall"]
    card = scoring.score(Evidence.of(proven.values()))
    assert before.level == 1
    assert card.level == 0
    assert card.blocked_by == ("FLT",)
    assert card.coverage == (len(CRITERIA) - 1) / len(CRITERIA)
    assert card.gaps[0][0].name == "stalls_are_named"


def test_a_dimension_without_criteria_is_not_covered_rather_than_zero(proven: Records) -> None:
    covered = {one.dimension for one in CRITERIA.values()}
    card = scoring.score(Evidence.of(proven.values()))
    for one in card.dimensions:
        assert (one.status == "not_covered") == (one.id not in covered)
        assert (one.level is None) == (one.id not in covered)


def _claim(name: str, outcome: Outcome = Outcome.TRUE, **fields: Any) -> Criterion:
    base: dict[str, Any] = {
        "claim": name,
        "why": "",
        "how": "",
        "dimension": "TRN",
        "level": 1,
        "risk": "high",
        "axis": "reliability",
        "pattern": "",
        "question": "",
        "remedy": "",
        "check": lambda evidence: Finding(outcome, ""),
        "applies": lambda evidence: True,
    }
    return Criterion(name=name, **(base | fields))


def _level(*claims: Criterion) -> int | None:
    return scoring.score(Evidence.of([]), claims).level


def test_a_blocking_claim_stops_the_level_it_belongs_to() -> None:
    bad = Outcome.FALSE
    assert _level(_claim("a"), _claim("b", level=2), _claim("c", level=3)) == 3
    assert _level(_claim("a"), _claim("b", bad, level=2), _claim("c", level=3)) == 1
    assert _level(_claim("a", bad), _claim("b", level=2)) == 0


def test_a_light_claim_stops_a_level_only_below_eighty_percent_of_its_weight() -> None:
    light = _claim("light", Outcome.FALSE, risk="low")
    assert _level(_claim("a", risk="critical"), light) == 1
    assert _level(_claim("a", risk="medium"), light) == 0


def test_unknown_weighs_as_much_as_disproved_in_the_score() -> None:
    shares = []
    for outcome in (Outcome.UNKNOWN, Outcome.FALSE):
        card = scoring.score(Evidence.of([]), [_claim("a"), _claim("b", outcome, risk="low")])
        shares.append(card.axes["reliability"])
    assert shares == [0.75, 0.75]


def test_what_is_not_applicable_leaves_the_denominator() -> None:
    absent = _claim("absent", dimension="SRV", applies=lambda evidence: False)
    card = scoring.score(Evidence.of([]), [_claim("a"), absent])
    assert card.level == 1
    assert card.applicable == 1
    assert {one.id: one.status for one in card.dimensions}["SRV"] == "not_applicable"


def test_the_terminal_text_says_the_verdict_the_excerpts_and_the_remedy(proven: Records) -> None:
    del proven["case_study.silent_stall"]
    text = report.as_text(scoring.score(Evidence.of(proven.values())))
    assert text.startswith(f"Platform maturity: L0 {LEVELS[0][0]}")
    assert "coverage 10 of 11" in text
    assert "stanchion case silent_stall" in text
    assert "backward 57%" in text
    assert "Not covered by a criterion yet: scheduling, observability" in text


def test_the_page_holds_a_row_for_each_dimension_and_claim(proven: Records) -> None:
    page = report.as_markdown(scoring.score(Evidence.of(proven.values())))
    assert page.startswith("# Platform maturity: L1 Scripted")
    for name in [*DIMENSIONS.values(), *(one.claim for one in CRITERIA.values())]:
        assert f"| {name} |" in page


def test_evidence_is_read_from_record_files_and_a_missing_folder_holds_none(
    proven: Records, tmp_path: Path
) -> None:
    for stage, one in proven.items():
        (tmp_path / f"{stage}.json").write_text(json.dumps(one, indent=2))
    evidence = read(str(tmp_path), str(tmp_path / "absent"), f"file://{tmp_path}")
    assert evidence == Evidence.of(proven.values())
