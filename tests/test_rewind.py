"""After a loss spike training goes back before it without its batches; no other is lost or repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from components.checkpoints import state
from components.data.left_out import batch_of, joined
from components.data.loader import Loader
from components.data.position import Position
from components.data.reader import Reader
from components.data.stream import TokenStream
from components.reliability.detectors import loss_spikes
from components.reliability.finding import Attempt, Finding, Sight
from components.training import rewind


@pytest.mark.parametrize("ranges", [(), ((0, 2),), ((3, 3), (5, 8)), ((0, 0), (2, 2), (4, 9), (11, 12))])
def test_steps_train_on_every_batch_that_is_not_left_out_in_order(
    ranges: tuple[tuple[int, int], ...],
) -> None:
    out = {number for first, last in ranges for number in range(first, last + 1)}
    assert [batch_of(step, ranges) for step in range(20)] == [n for n in range(40) if n not in out][:20]


def test_ranges_are_joined_and_what_was_trained_on_already_stays() -> None:
    assert joined((), [(7, 9), (1, 2), (3, 4), (8, 12)]) == ((1, 4), (7, 12))
    assert joined(((1, 4),), [(1, 4), (3, 12)], since=6) == ((1, 4), (6, 12))


def stream_of(shards: Path, left_out: tuple[tuple[int, int], ...] = ()) -> TokenStream:
    reader = Reader(str(shards))
    return TokenStream(reader, "train", sequence_length=64, batch_size=4, seed=0, left_out=left_out)


def test_a_checkpoint_carries_what_is_left_out_to_another_number_of_ranks(small_shards: Path) -> None:
    """Two ranks until step 3, with batches 2 and 6 to 7 left out; then one rank and a worker process."""
    whole, ranges = stream_of(small_shards), ((2, 2), (6, 7))
    two = [Loader(stream_of(small_shards, ranges), rank=rank, world_size=2) for rank in (0, 1)]
    rows = [np.concatenate([next(one).inputs for one in two]) for _ in range(3)]
    kept = Position.model_validate_json(two[0].position.model_dump_json())
    kept.refuse_another(whole.position(0))
    assert (kept.step, kept.left_out) == (3, ranges)
    again = stream_of(small_shards, kept.left_out)
    with Loader(again, first_step=kept.step, workers=1) as one:
        rows += [next(one).inputs for _ in range(4)]
    for stream in (whole, again, *(loader.stream for loader in two)):
        stream.reader.close()
    expected = [whole.batch(number).inputs for number in (0, 1, 3, 4, 5, 8, 9)]
    assert all(np.array_equal(*pair) for pair in zip(rows, expected, strict=True))


def spike(first_step: int, batch: int) -> Finding:
    watch = loss_spikes.make(loss_spikes.Config(action="rewind", window=8, sustained=2, after=3), 2)
    losses = [3.0] * 8 + [9.0] * 2
    steps = range(first_step - 8, first_step + 2)
    events = [
        {"kind": "step", "rank": 0, "step": step, "batch": batch + step - first_step, "loss": loss}
        for step, loss in zip(steps, losses, strict=True)
    ]
    (found,) = watch.look(Sight((), events, 0.0))
    return found


def test_a_spike_says_what_to_go_back_to_and_which_batches_to_leave_out() -> None:
    found = spike(20, batch=31)
    assert (found.ends, found.step) == (True, 20)
    assert (found.figures["resume_before"], found.figures["leave_out"]) == (18, [29, 35])


def test_checkpoints_since_a_spike_are_set_aside_once_and_its_batches_for_good(
    make_checkpoint: Callable[..., str], tmp_path: Path
) -> None:
    urls = {step: make_checkpoint(tmp_path, step) for step in (12, 16, 18, 24)}
    first = Attempt(1, (spike(20, batch=19),))
    assert rewind.prepare(str(tmp_path), first) == ((17, 23),)
    known = {step: state.read(url) for step, url in urls.items()}
    assert {step: found.state for step, found in known.items() if found} == {
        12: "validated",
        16: "validated",
        18: "quarantined",
        24: "quarantined",
    }
    assert "rewound to before step 18" in str(known[24])
    later = make_checkpoint(tmp_path, 30)
    crashed = Attempt(2, (*first.findings, Finding("crash", "killed")))
    assert rewind.prepare(str(tmp_path), crashed) == ((17, 23),), "the batches stay left out"
    good = state.read(later)
    assert good is not None
    assert good.state == "validated", "written since by an attempt that had left them out"
