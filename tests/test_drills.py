"""Drills on real ranks: what the proof shows in full, on a few; and that its judgement can fail."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from case_studies.proofs import _data, drills, killed_ranks
from case_studies.proofs.drills import NOT_HERE, in_time, place_of, summary
from components.plugins import names
from components.reliability.faults import KINDS, Drill, point_of

GOOD = {
    "kind": "sleep",
    "detected": True,
    "right": True,
    "finding": "stall",
    "median_step_seconds": 0.05,
    "seconds_to_detect": 1.8,
    "steps_to_detect": 0,
    "bundle_seconds": 0.3,
    "seconds_to_recover": 1.5,
    "recovered": True,
    "false_alarms": [],
}


@pytest.mark.parametrize("kind", [kind for kind in names(KINDS) if kind not in NOT_HERE])
def test_every_kind_of_fault_has_a_place_to_strike(kind: str) -> None:
    place = place_of(kind, random.Random(kind))
    assert place.rank < place.ranks
    drill = Drill(kind=kind, rank=place.rank, step=place.step, phase=place.phase, settings=place.settings)
    assert drill.phase == (point_of(kind) or place.phase)


def test_a_kind_holds_when_all_its_drills_were_found_in_time_and_mended() -> None:
    told = summary([GOOD] * 20)
    assert told["holds"]
    assert told["seconds_to_detect"] == [1.8, 1.8, 1.8]


@pytest.mark.parametrize(
    "wrong",
    [
        {"detected": False},
        {"seconds_to_detect": 2.1},
        {"bundle_seconds": 5.1},
        {"recovered": False},
        {"false_alarms": ["a stall"]},
    ],
)
def test_one_drill_of_twenty_that_went_wrong_ends_the_claim(wrong: dict[str, Any]) -> None:
    assert not summary([GOOD] * 19 + [GOOD | wrong])["holds"]


def test_one_wrong_name_in_twenty_is_allowed_and_two_are_not() -> None:
    wrong = GOOD | {"right": False}
    assert summary([GOOD] * 19 + [wrong])["holds"]
    assert not summary([GOOD] * 18 + [wrong] * 2)["holds"]


def test_slow_steps_allow_a_later_detection_in_seconds_and_slowness_counts_in_steps() -> None:
    assert in_time(GOOD | {"median_step_seconds": 1.0, "seconds_to_detect": 2.9})
    assert in_time(GOOD | {"kind": "slow_rank", "seconds_to_detect": 9.0, "steps_to_detect": 6})
    assert not in_time(GOOD | {"kind": "slow_rank", "steps_to_detect": drills.BAR_SLOW_STEPS + 1})


def test_a_skipped_collective_and_a_flipped_bit_are_blamed_on_their_rank_and_mended() -> None:
    found = drills.prove(seed=1, count=1, kinds=("skipped_collective", "flipped_replica"))
    for one in found["journal"]:
        assert one["detected"], one
        assert (one["culprit"], one["right"], one["confidence"]) == (one["rank"], True, "certain"), one
        assert one["stacks"] == one["ranks"], one
        assert one["records_of_collectives"] >= 1, one  # on a crowded machine not all answer in time
        assert (one["restarts"], one["recovered"], one["false_alarms"]) == (1, True, []), one


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_job_does_new_steps(tmp_path: Path) -> None:
    _data.make_real_in_pieces(tmp_path / "data")
    found = killed_ranks.killed(tmp_path, "kill", random.Random(3))
    assert found["named"] == found["rank"]
    assert found["seconds_to_detect"] < found["seconds_to_a_step"] <= found["seconds_to_a_new_step"]
    assert 0 <= found["repeated_steps"] < 2 * killed_ranks.SAVED_EVERY
