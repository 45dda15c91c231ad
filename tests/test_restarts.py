"""When a job is started again after a fault, and when it is not."""

from __future__ import annotations

import pytest

from components.reliability.finding import Finding
from components.reliability.restarts import Again, Budget, Ended, Enough, Restarts
from components.reliability.watchdog import Limits

STEADY = Budget(max_restarts=3, backoff_seconds=1.0, backoff_jitter=0.0)


def crash(step: int | None, rank: int | None = None, *, at: float = 0.0, first: int | None = 1) -> Ended:
    return Ended(Finding("crash", "it broke", rank=rank, step=step), at, first, step or 0)


def pauses(policy: Restarts, *ends: Ended) -> list[float]:
    """The pause after each, of a job that goes on after all of them."""
    found = [policy.after(end) for end in ends]
    assert all(isinstance(one, Again) for one in found), found
    return [one.seconds for one in found if isinstance(one, Again)]


def test_pauses_double_up_to_the_longest() -> None:
    policy = Restarts(STEADY.model_copy(update={"longest_backoff_seconds": 3.0}))
    assert pauses(policy, crash(5, 0), crash(9, 1), crash(12, 2)) == [1.0, 2.0, 3.0]


def test_pauses_are_spread_by_chance_and_the_same_seed_repeats_them() -> None:
    budget = Budget(backoff_seconds=8.0, backoff_jitter=0.25)
    ends = [crash(5, 0), crash(9, 1), crash(12, 2)]
    one, other = pauses(Restarts(budget, "one"), *ends), pauses(Restarts(budget, "other"), *ends)
    assert one == pauses(Restarts(budget, "one"), *ends) != other
    for pause, whole in zip(one, (8.0, 16.0, 32.0), strict=True):
        assert 0.75 * whole <= pause <= 1.25 * whole


def test_different_faults_use_the_budget_up() -> None:
    policy = Restarts(STEADY)
    pauses(policy, crash(5, 0), crash(9, 1), crash(12, 2))
    enough = policy.after(crash(14, 3))
    assert isinstance(enough, Enough)
    assert "3 restarts within 3600 s have kept no new step" in enough.why


def test_restarts_of_an_earlier_window_no_longer_count() -> None:
    policy = Restarts(STEADY)
    ends = [crash(5 * number, number, at=number * 2000.0) for number in range(1, 9)]
    assert max(pauses(policy, *ends)) == 2.0


def test_steps_that_a_checkpoint_has_kept_refill_the_budget() -> None:
    policy = Restarts(STEADY)
    pauses(policy, crash(5, 0), crash(9, 1), crash(12, 2))
    assert pauses(policy, crash(25, 3, first=11)) == [1.0]


@pytest.mark.parametrize(
    ("again", "told"),
    [
        (crash(10, 1), "crash in step 10 of rank 1 came 2 times running"),
        (crash(10, 0), "no attempt got beyond step 10"),
        (crash(8, 1), "what follows one rank is in its node"),
    ],
)
def test_the_same_fault_before_any_new_step_is_a_crash_loop(again: Ended, told: str) -> None:
    policy = Restarts(STEADY)
    pauses(policy, crash(10, 1))
    enough = policy.after(again)
    assert isinstance(enough, Enough)
    assert told in enough.why


def test_a_job_that_never_comes_to_a_step_is_given_up_with_what_to_look_at() -> None:
    policy = Restarts(STEADY)
    pauses(policy, crash(None, first=None))
    enough = policy.after(crash(None, first=None))
    assert isinstance(enough, Enough)
    assert "read the log for an import" in enough.why


def test_the_same_fault_further_on_or_another_fault_is_no_loop() -> None:
    policy = Restarts(STEADY)
    pauses(policy, crash(10, 1), crash(11, 1))
    stall = Ended(Finding("stall", "it stood", rank=1, step=11), 0.0, 1, 11)
    assert isinstance(policy.after(stall), Again)


def test_no_restart_may_be_allowed_and_limits_carry_the_budget() -> None:
    enough = Restarts(Limits(max_restarts=0)).after(crash(1, 0))
    assert isinstance(enough, Enough)
    assert "max_restarts=0" in enough.why
