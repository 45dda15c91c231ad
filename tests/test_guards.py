"""No bad gradient reaches an optimizer, whoever's it was; and the decision is the same on resume."""

from __future__ import annotations

import json
from math import inf, nan

import pytest

from components.training.guard import Config, Guard, Norms

HEALTHY = (Norms(0.8, 0.3), Norms(0.7, 0.4))
"""Of two ranks that are given a slice each: together 0.5."""


def seasoned(*, factor: float = 10.0) -> Guard:
    guard = Guard(Config(factor=factor, least=4))
    assert not any(guard.judge(HEALTHY, sharded=True) for _ in range(8))
    return guard


@pytest.mark.parametrize(
    ("norms", "rank"),
    [
        ((Norms(0.8, nan), Norms(nan, nan)), 1),
        ((Norms(inf, nan), Norms(0.7, 0.4)), 0),
        ((Norms(0.8, 0.3), Norms(0.7, nan)), 1),
        ((Norms(nan, nan), Norms(nan, nan)), None),
    ],
    ids=["own of rank 1", "own of rank 0", "on the way to rank 1", "of all"],
)
def test_what_is_not_finite_never_passes_and_the_rank_it_began_at_is_named(
    norms: tuple[Norms, ...], rank: int | None
) -> None:
    refusal = Guard(Config()).judge(norms, sharded=True)
    assert refusal is not None
    assert (refusal.rank, "not finite" in refusal.reason) == (rank, True)


def test_a_norm_that_no_gradient_accounts_for_is_damage_on_the_way() -> None:
    refusal = Guard(Config()).judge((Norms(0.8, 0.3), Norms(0.7, 0.9)), sharded=True)
    assert refusal is not None
    assert (refusal.rank, "damaged on the way" in refusal.reason) == (1, True)


def test_an_outlier_is_left_out_and_is_whose_gradient_it_was() -> None:
    guard = seasoned()
    one = guard.judge((Norms(0.8, 4), Norms(15, 5)), sharded=True)
    alike = guard.judge((Norms(14, 4), Norms(15, 5)), sharded=True)
    assert one is not None
    assert alike is not None
    assert (one.rank, alike.rank) == (1, None)
    assert guard.norm == pytest.approx(41**0.5)
    assert guard.judge(HEALTHY, sharded=True) is None, "what was left out is no part of what is usual"


def test_the_first_steps_may_have_any_size() -> None:
    guard = Guard(Config(factor=10, least=4))
    large = tuple(Norms(100 * norms.own, 100 * norms.given) for norms in HEALTHY)
    assert not any(guard.judge(norms, sharded=True) for norms in (HEALTHY, large, HEALTHY, large))


def test_without_zero_all_ranks_are_given_the_same_to_the_last_bit() -> None:
    ranks = [Norms(0.8, 0.5), Norms(0.7, 0.5 + 1e-12), Norms(0.6, 0.5)]
    refusal = Guard(Config()).judge(ranks, sharded=False)
    two = Guard(Config()).judge(ranks[:2], sharded=False)
    assert refusal is not None
    assert two is not None
    assert (refusal.rank, two.rank) == (1, None), "of two, nobody can say which"


def test_a_few_in_a_row_are_lived_with_and_one_good_step_forgives_them() -> None:
    guard = Guard(Config(in_a_row=2))
    bad = (Norms(nan, nan), Norms(0.7, nan))
    ends = []
    for norms in (bad, bad, HEALTHY, bad, bad, bad):
        guard.judge(norms, sharded=True)
        ends.append(guard.at_its_end)
    assert ends == [False] * 5 + [True]


def test_a_resumed_guard_decides_as_the_one_that_was_interrupted() -> None:
    guard = seasoned()
    guard.judge((Norms(nan, nan), Norms(0.7, nan)), sharded=True)
    again = Guard(guard.config, **json.loads(json.dumps(guard.state)))
    edge = (Norms(40, 3), Norms(40, 4.000001)), (Norms(40, 3), Norms(40, 3.99))
    assert [guard.judge(norms, sharded=True) for norms in edge] == [
        again.judge(norms, sharded=True) for norms in edge
    ]
    assert (again.skipped, list(again.seen)) == (guard.skipped, list(guard.seen))
