"""Every second of a job belongs to useful steps or to one named cause of loss."""

from __future__ import annotations

import random
from typing import Any

import pytest

from components.reliability.goodput import CAUSES, Window, account, share_useful, told

PHASES = {"data": 0.1, "forward": 0.3, "backward": 0.4, "optimizer": 0.1}


def step(number: int, at: float, **seconds: float) -> dict[str, Any]:
    return {"kind": "step", "step": number, "at": at, "seconds": {**PHASES, **seconds}}


def test_a_run_without_faults_is_start_steps_and_end() -> None:
    events = [step(number, 10.0 + number) for number in range(1, 6)]
    spent = account([Window(0.0, 16.0)], events)
    assert spent["start"] == pytest.approx(10.1)
    assert spent["useful"] == pytest.approx(5 * 0.8)
    assert spent["data"] == pytest.approx(0.5)
    assert spent["other"] == pytest.approx(4 * 0.1)
    assert spent["ending"] == pytest.approx(1.0)
    assert sum(spent.values()) == pytest.approx(16.0)
    assert share_useful(spent) == pytest.approx(4.0 / 16.0)


def test_steps_that_were_lost_are_rework_and_the_time_until_anyone_noticed_is_detection() -> None:
    first = [step(number, 10.0 + number) for number in range(1, 6)]
    again = [step(number, 30.0 + number) for number in range(4, 8)]  # from the checkpoint of step 3
    spent = account([Window(0.0, 20.0, "stall"), Window(22.0, 38.0)], first + again)
    assert spent["repeated"] == pytest.approx(2 * 0.8)
    assert spent["useful"] == pytest.approx((3 + 4) * 0.8)
    assert spent["detection"] == pytest.approx(5.0)
    assert spent["restart"] == pytest.approx(2.0)
    assert sum(spent.values()) == pytest.approx(38.0)


def test_what_training_waits_for_a_checkpoint_is_told_and_no_more() -> None:
    events = [
        step(1, 11.0),
        {"kind": "evaluate", "step": 1, "at": 13.0},
        {"kind": "checkpoint", "step": 1, "at": 13.5, "seconds_stalled": 0.2, "seconds_to_save": 60.0},
        step(2, 14.5),
    ]
    spent = account([Window(0.0, 14.5)], events)
    assert spent["evaluate"] == pytest.approx(2.0)
    assert spent["checkpoint"] == pytest.approx(0.2)
    assert sum(spent.values()) == pytest.approx(14.5)


def test_an_attempt_that_never_stepped_is_all_start() -> None:
    spent = account([Window(0.0, 9.0, "crash")], [])
    assert spent == {**dict.fromkeys(CAUSES, 0.0), "start": 9.0}
    assert share_useful(account([], [])) == 0.0


def test_a_log_line_tells_the_share_and_the_largest_losses() -> None:
    spent = {**dict.fromkeys(CAUSES, 0.0), "useful": 26.0, "start": 12.0, "other": 2.0, "data": 0.01}
    assert told(spent) == "65% of 40 s were useful steps; start 12.0 s, other 2.0 s"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_causes_sum_to_the_wall_time(seed: int) -> None:
    drawn, now, events, windows, number = random.Random(seed), 0.0, [], [], 0
    for _ in range(drawn.randint(1, 6)):
        launched = now
        now += drawn.uniform(0, 20)
        number = max(0, number - drawn.randint(0, 5))
        for _ in range(drawn.randint(0, 30)):
            now, number = now + drawn.uniform(0, 2), number + 1
            events.append(step(number, now, forward=drawn.uniform(0, 3)))
            if drawn.random() < 0.2:
                now += drawn.uniform(0, 3)
                kind = drawn.choice(["evaluate", "checkpoint", "resume"])
                events.append(
                    {"kind": kind, "step": number, "at": now, "seconds_stalled": drawn.uniform(0, 4)}
                )
        now += drawn.uniform(0, 10)
        windows.append(Window(launched, now, drawn.choice([None, "crash"])))
        now += drawn.uniform(0, 4)
    spent = account(windows, events)
    assert sum(spent.values()) == pytest.approx(windows[-1].ended - windows[0].launched, rel=1e-6)
    assert all(seconds >= -1e-9 for seconds in spent.values())


def test_updates_of_a_policy_are_steps_and_writing_its_samples_is_work() -> None:
    updates = [step(number, 10.0 + number, rollout=0.05) | {"kind": "update"} for number in range(1, 6)]
    spent = account([Window(0.0, 16.0)], updates)
    assert spent["useful"] == pytest.approx(5 * 0.85)
    assert spent["start"] == pytest.approx(10.05)
    assert sum(spent.values()) == pytest.approx(16.0)


def test_a_job_that_trains_nothing_is_not_called_useless() -> None:
    assert told(account([Window(0.0, 16.0)], [])) == "16 s without a training step"
