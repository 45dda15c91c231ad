"""The interval between saves is the one that wastes least, and every rank comes to the same."""

from __future__ import annotations

import random

import pytest

from components.checkpoints.interval import Interval, daly, mtbf_seconds, waste, young

MTBF, COST = 3.09 * 3600, 60.0


def lost(interval: float, *, failures: int = 4000) -> float:
    """Share of the time that does not move training on, with failures drawn at random; a restart is free."""
    drawn, useful, total = random.Random(7), 0.0, 0.0
    for _ in range(failures):
        alive = drawn.expovariate(1 / MTBF)
        total += alive
        useful += interval * (alive // (interval + COST))
    return 1 - useful / total


def test_no_other_interval_wastes_less_to_first_order() -> None:
    best = young(MTBF, COST)
    assert all(waste(best, MTBF, COST) <= waste(best * factor, MTBF, COST) for factor in (0.5, 0.9, 1.1, 2))


def test_with_failures_at_random_the_chosen_interval_is_within_a_percent_of_the_best() -> None:
    best = min(lost(seconds) for seconds in range(200, 4000, 100))
    assert lost(daly(MTBF, COST)) <= best + 0.01
    assert lost(200.0) > best + 0.05


def test_a_save_that_costs_as_much_as_the_machine_lives_is_made_once_a_life() -> None:
    assert daly(60.0, 200.0) == 60.0


def test_llama_3_failed_every_three_hours() -> None:
    assert mtbf_seconds(3.79, 2048) / 3600 == pytest.approx(3.09, abs=0.01)


def test_a_fixed_interval_stays_what_it_was_set_to() -> None:
    interval = Interval(250, MTBF)
    interval.start(100)
    assert [step for step in range(1, 1001) if interval.due(step)] == [250, 500, 750, 1000]
    assert interval.saved(250, step_seconds=1, cost=9, seconds=9) == {}


def test_auto_saves_soon_and_then_as_often_as_its_cost_deserves() -> None:
    interval = Interval("auto", MTBF)
    interval.start(100)
    assert not interval.due(119)
    assert interval.due(120)
    told = interval.saved(120, step_seconds=2.0, cost=COST, seconds=COST)
    assert told["steps_between"] == round(daly(MTBF, COST) / 2)
    assert not interval.due(120 + interval.steps - 1)
    assert interval.due(120 + interval.steps)


def test_auto_never_asks_for_a_save_while_one_is_being_written() -> None:
    interval = Interval("auto", 100.0)
    interval.start(0)
    interval.saved(20, step_seconds=1.0, cost=0.01, seconds=300.0)
    assert interval.steps == 300
