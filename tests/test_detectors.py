"""Detectors on synthetic step times: what they find, how soon, and that they are quiet otherwise."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.jobs import Job
from components.reliability.config import Reliability
from components.reliability.detectors import data_stalls, loss_spikes, stragglers
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


def test_a_rank_that_waits_for_data_is_named_once_a_stall_and_two_thousand_good_steps_are_quiet() -> None:
    watch, noise = data_stalls.make(data_stalls.Config(), 2), random.Random(2)
    found: list[Finding] = []
    for step in range(1, 2301):
        slow = 2000 < step <= 2100 or step > 2200
        for rank in range(2):
            data = 0.01 * noise.lognormvariate(0, 0.5) + (0.3 if slow and rank == 1 else 0)
            seconds = {"data": data, "forward": 0.1 * noise.lognormvariate(0, 0.25)}
            event = {"kind": "step", "rank": rank, "step": step, "seconds": seconds}
            found += watch.look(Sight((), [event], float(step)))
    assert [(one.kind, one.rank, one.ends) for one in found] == [("data_stall", 1, False)] * 2
    assert all(since < (one.step or 0) <= since + 20 for one, since in zip(found, (2000, 2200), strict=True))
    assert found[0].figures["ranks_waiting"] == [1]


def test_a_profile_names_its_detectors_and_a_typo_is_refused() -> None:
    watched = Reliability.model_validate({"detectors": {"stragglers": {"ratio": 3.0}, "data_stalls": {}}})
    job = Job("x", "x", {}, Path(), 4)
    assert [type(detector).__name__ for detector in watched.detectors_of(job)] == ["Stragglers", "DataStalls"]
    with pytest.raises(ValueError, match="straglers"):
        Reliability.model_validate({"detectors": {"straglers": {}}})


def test_a_sustained_loss_spike_is_told_once_and_single_bad_batches_of_two_thousand_are_not() -> None:
    watch, noise = loss_spikes.make(loss_spikes.Config(), 2), random.Random(3)
    found: list[Finding] = []
    for step in range(1, 2101):
        loss = 3 + 7 / (1 + step / 50) + noise.gauss(0, 0.1) + (3 if step % 97 == 0 or step > 2000 else 0)
        found += watch.look(Sight((), [{"kind": "step", "rank": 0, "step": step, "loss": loss}], float(step)))
    assert [(one.kind, one.figures["from"], one.figures["to"]) for one in found] == [
        ("loss_spike", 2001, 2005)
    ]
