"""The default block mixes neighbours nearly as a uniform shuffle does, and no epoch repeats another.

Two numbers. `displacement`: how far an item moves from its place in the files, on average, over the third of
the corpus that a uniform shuffle moves it. `entropy`: bits in the pair of shards that two neighbours come
from, over the bits that a uniform shuffle of the same corpus has; low when a block mixes few shards.

Claimed: both at least 0.95 with the default block of 2^18 items, for shards of up to 256 items (the default
number of documents) and corpora of several blocks. Larger shards do worse, and the table says how much: a
block then holds few of them. The cure is a larger block, or smaller shards; the price of a larger block is
that more shards are open, and cached, at a time.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.data.order import BLOCK_ITEMS, Order

TITLE = "Near a uniform shuffle while a block holds many shards"
BAR = 0.95
CLAIMED_ITEMS_PER_SHARD = 256
CORPORA = ((256, 1.0), (256, 4.0), (256, 10.0), (1000, 1.0), (1000, 10.0), (10_000, 10.0))
"""Items of a shard, and millions of items."""
BLOCKS = (1 << 14, 1 << 16, BLOCK_ITEMS, 1 << 20)
DIGEST = "1f" * 32

Ints = NDArray[np.int64]


def prove(*, seed: int = 0, count: int = 10_000_000) -> dict[str, Any]:
    """Measure every corpus of at most `count` items at every size of block, and three epochs of one."""
    rows = []
    for items_per_shard, millions in CORPORA:
        shards = int(millions * 1_000_000) // items_per_shard
        if shards * items_per_shard > count:
            continue
        uniform = _uniform_bits(shards, items_per_shard, seed)
        for block in BLOCKS:
            rows.append(measured(shards, items_per_shard, block, seed=seed, uniform=uniform))
    claimed = [
        row
        for row in rows
        if row["block_items"] == BLOCK_ITEMS and row["items_per_shard"] <= CLAIMED_ITEMS_PER_SHARD
    ]
    epochs = epochs_apart(4000, 256, seed=seed)
    quality = all(min(row["displacement"], row["entropy"]) >= BAR for row in claimed)
    apart = max(map(abs, epochs["correlation"])) < 0.01
    return {"holds": bool(claimed) and quality and apart, "bar": BAR, "measured": rows, "epochs": epochs}


def measured(
    shards: int, items_per_shard: int, block_items: int, *, seed: int, uniform: float | None = None
) -> dict[str, Any]:
    """Both numbers of one epoch, each over what a uniform shuffle has."""
    order = Order([items_per_shard] * shards, seed=seed, digest=DIGEST, block_items=block_items)
    drawn, rows = epoch_of(order, 0)
    moved = np.abs(drawn * items_per_shard + rows - np.arange(len(order))).mean()
    bits = _bits_of_pairs(drawn, shards)
    most = uniform or _uniform_bits(shards, items_per_shard, seed)
    return {
        "items": len(order),
        "items_per_shard": items_per_shard,
        "block_items": block_items,
        "shards_per_block": round(min(block_items / items_per_shard + 1, shards), 1),
        "displacement": round(float(moved / (len(order) / 3)), 4),
        "entropy": round(bits / most, 4),
        "bits": round(bits, 3),
        "uniform_bits": round(most, 3),
    }


def epochs_apart(shards: int, items_per_shard: int, *, seed: int) -> dict[str, Any]:
    """Rank correlation of each epoch with the next, and the share of items that keep their place."""
    order = Order([items_per_shard] * shards, seed=seed, digest=DIGEST)
    lines = [drawn * items_per_shard + rows for drawn, rows in (epoch_of(order, i) for i in range(3))]
    places = [np.argsort(line) for line in lines]
    pairs = list(itertools.pairwise(places))
    return {
        "items": len(order),
        "whole": all(bool((np.sort(line) == np.arange(len(order))).all()) for line in lines),
        "correlation": [round(float(np.corrcoef(one, two)[0, 1]), 5) for one, two in pairs],
        "kept_their_place": [round(float((one == two).mean()), 7) for one, two in pairs],
    }


def epoch_of(order: Order, epoch: int) -> tuple[Ints, Ints]:
    """Shard and row at every place of an epoch."""
    blocks = [order.block(epoch, i) for i in range(-(-len(order) // order.block_items))]
    return np.concatenate([one.shards for one in blocks]), np.concatenate([one.rows for one in blocks])


def _uniform_bits(shards: int, items_per_shard: int, seed: int) -> float:
    """Of a uniform shuffle of the same corpus: a sample of its pairs, as the order is one."""
    items = np.random.default_rng(seed).permutation(shards * items_per_shard)
    return _bits_of_pairs(items // items_per_shard, shards)


def _bits_of_pairs(drawn: Ints, shards: int) -> float:
    """Entropy of the shards of neighbours, in bits."""
    pairs = np.sort(drawn[:-1] * shards + drawn[1:])
    ends = np.flatnonzero(np.append(pairs[1:] != pairs[:-1], True))
    share = np.diff(ends, prepend=-1) / len(pairs)
    return float(-(share * np.log2(share)).sum())
