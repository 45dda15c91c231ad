"""Detectors on synthetic step times: what they find, how soon, and that they are quiet otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator

from components.reliability.detectors import stragglers
from components.reliability.finding import Finding, Sight


def _found(steps: int, factor: float, since: int, until: int) -> Iterator[tuple[int, Finding]]:
    noise, watch = random.Random(1), stragglers.make(stragglers.Config(), 4)
    for step in range(1, steps + 1):
        for rank in range(4):
            seconds = 0.1 * noise.lognormvariate(0, 0.25) * (5 if noise.random() < 0.03 else 1)
            seconds *= factor if rank == 2 and since <= step < until else 1
            event = {"kind": "step", "rank": rank, "step": step, "seconds": {"forward": seconds}}
            yield from ((step, one) for one in watch.look(Sight((), [event], float(step))))


def test_a_rank_three_times_slower_is_named_within_twenty_steps_once_and_once_when_it_is_over() -> None:
    (began, first), (_, last) = _found(400, 3, 100, 200)
    assert (first.kind, first.rank, first.phase, first.ends) == ("straggler", 2, "forward", False)
    assert 100 <= began <= 120
    assert (last.kind, last.rank) == ("straggler_over", 2)


def test_a_rank_a_tenth_slower_among_noise_is_no_straggler_in_two_thousand_steps() -> None:
    assert not list(_found(2000, 1.1, 1, 2001))
