"""The order is arithmetic: each item once an epoch, another order each epoch, found without a read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from case_studies.proofs import shuffle_quality
from components.data.order import Order

DIGEST = "ab" * 32
PINNED: list[tuple[int, int]] = [
    (2, 5),
    (2, 0),
    (2, 2),
    (2, 3),
    (2, 4),
    (2, 1),
    (0, 1),
    (0, 0),
    (2, 8),
    (1, 0),
    (2, 7),
    (2, 6),
    (0, 3),
    (0, 4),
    (0, 2),
]
PINNED_LARGE: list[tuple[int, int]] = [(89, 17739), (911, 12123), (261, 15271)]


def whole(order: Order, epoch: int) -> list[tuple[int, int]]:
    return [order.locate(epoch * len(order) + place) for place in range(len(order))]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    block_items=st.sampled_from([1, 2, 7, 1 << 18]),
    seed=st.integers(0, 1 << 40),
)
def test_an_epoch_holds_every_item_once(counts: list[int], block_items: int, seed: int) -> None:
    order = Order(counts, seed=seed, digest=DIGEST, block_items=block_items)
    every = [(shard, row) for shard, count in enumerate(counts) for row in range(count)]
    assert sorted(whole(order, 0)) == sorted(whole(order, 3)) == every


def test_each_epoch_seed_and_data_set_has_an_order_of_its_own() -> None:
    orders = [Order([40, 60], seed=seed, digest=digest) for seed in (0, 1) for digest in (DIGEST, "cd" * 32)]
    found = [tuple(whole(order, epoch)) for order in orders for epoch in range(3)]
    assert len(set(found)) == len(found) == 12


def test_the_order_of_a_seed_never_changes() -> None:
    """Checkpoints rest on it: when this fails, `order.VERSION` has to be counted up."""
    order = Order([5, 1, 9], seed=3, digest=DIGEST, block_items=6)
    assert whole(order, 0) == PINNED
    large = Order([20_000] * 1000, seed=7, digest=DIGEST)
    assert [large.locate(place) for place in (0, 123_456_789, 10**12)] == PINNED_LARGE


def test_a_place_is_found_whatever_was_asked_before() -> None:
    fresh = Order([30] * 50, seed=1, digest=DIGEST, block_items=64)
    used = Order([30] * 50, seed=1, digest=DIGEST, block_items=64)
    for place in (0, 5000, 17, 1499, 1500, 64, 63, 10**9, 1):
        assert used.locate(place) == Order([30] * 50, seed=1, digest=DIGEST, block_items=64).locate(place)
    assert whole(used, 2) == whole(fresh, 2)


def test_no_more_than_two_blocks_are_held() -> None:
    order = Order([100] * 100, seed=1, digest=DIGEST, block_items=128)
    for place in range(0, 30_000, 100):
        order.locate(place)
    assert len(order._blocks) <= 2
    assert len(order._lines) <= 2


def test_a_default_block_mixes_almost_as_a_uniform_shuffle() -> None:
    row = shuffle_quality.measured(2048, 256, 1 << 18, seed=0)
    assert row["displacement"] >= 0.95
    assert row["entropy"] >= 0.95


def test_larger_shards_mix_less_and_larger_blocks_mix_more() -> None:
    """The proof's measure sees what it should: a block of few shards is far from uniform."""
    few = shuffle_quality.measured(100, 2560, 1 << 13, seed=0)["entropy"]
    more = shuffle_quality.measured(100, 2560, 1 << 16, seed=0)["entropy"]
    assert few < 0.7 < more < 1


def test_no_epoch_looks_like_the_one_before_it() -> None:
    apart = shuffle_quality.epochs_apart(64, 256, seed=0)
    assert apart["whole"]
    assert max(map(abs, apart["correlation"])) < 0.05
    assert max(apart["kept_their_place"]) < 0.001


@pytest.mark.parametrize("place", [0, 1_800_000_000, 10**13])
def test_two_thousand_million_items_are_no_burden(place: int) -> None:
    counts = np.full(100_000, 20_000)
    shard, row = Order(counts.tolist(), seed=0, digest=DIGEST).locate(place)
    assert 0 <= shard < 100_000
    assert 0 <= row < 20_000
