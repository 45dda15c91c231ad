"""The order of an epoch by arithmetic: which item stands at a place follows from (seed, epoch, manifest).

Shards are drawn in a random order and laid end to end; that line is cut into blocks, and each block is
permuted by itself. So any place of any epoch is found from one block of random bits, in a few hundredths of a
second and a few megabytes, for a corpus of any size, and no process has to have read what came before.

Pattern: Order by Arithmetic
Problem: a loader's order lives in its workers' buffers, so another world size or a restart repeats and loses
samples.
Answer: the order is a function of seed, epoch and manifest digest, and the position in it is one integer.
Trade-off: items mix within blocks, not over the whole corpus; the default block is measured against that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

VERSION = 1
"""Of the arithmetic: it may change only together with this number, since checkpoints rest on it."""
BLOCK_ITEMS = 1 << 18
Ints = NDArray[np.int64]


class Block(NamedTuple):
    """A stretch of an epoch."""

    shards: Ints
    """For each place of the block, in which shard its item lies, as a position in the list of shards."""
    rows: Ints
    """And which of that shard's items it is."""


class Order:
    """An endless sequence of epochs over `counts[i]` items of shard i, each epoch in an order of its own."""

    def __init__(
        self, counts: Sequence[int], *, seed: int, digest: str, block_items: int = BLOCK_ITEMS
    ) -> None:
        self.counts = np.asarray(counts, dtype=np.int64)
        self.num_items = int(self.counts.sum())
        self.block_items = min(block_items, max(self.num_items, 1))
        self._entropy = [seed, int(digest[:32], 16)]
        self._blocks: dict[tuple[int, int], Block] = {}
        self._lines: dict[int, tuple[Ints, Ints]] = {}

    def __len__(self) -> int:
        return self.num_items

    def locate(self, position: int) -> tuple[int, int]:
        """Shard and item at a position of the endless sequence."""
        epoch, place = divmod(position, self.num_items)
        number, inside = divmod(place, self.block_items)
        block = self.block(epoch, number)
        return int(block.shards[inside]), int(block.rows[inside])

    def block(self, epoch: int, number: int) -> Block:
        """A block of an epoch; the last two are kept, since a batch may span them."""
        if (known := self._blocks.get((epoch, number))) is not None:
            return known
        while len(self._blocks) > 1:
            self._blocks.pop(next(iter(self._blocks)))
        made = self._blocks[epoch, number] = self._make(epoch, number)
        return made

    def _make(self, epoch: int, number: int) -> Block:
        drawn, starts = self._line(epoch)
        first = number * self.block_items
        size = min(self.block_items, self.num_items - first)
        places = np.arange(first, first + size)
        turn = np.searchsorted(starts, places, side="right") - 1  # of neighbours, which is quick, then mixed
        mixed = self._permutation(size, epoch, 1 + number)
        return Block(drawn[turn][mixed], (places - starts[turn])[mixed])

    def _line(self, epoch: int) -> tuple[Ints, Ints]:
        """The shards in the order of an epoch, and where on the line each begins."""
        if epoch not in self._lines:
            drawn = self._permutation(len(self.counts), epoch, 0)
            starts = np.concatenate(([0], np.cumsum(self.counts[drawn])[:-1]))
            self._lines = {**dict(list(self._lines.items())[-1:]), epoch: (drawn, starts)}
        return self._lines[epoch]

    def _permutation(self, size: int, epoch: int, stream: int) -> Ints:
        """By sorting random bits: numpy keeps a generator's bits the same, but not its `permutation`."""
        bits = np.random.Philox(np.random.SeedSequence([*self._entropy, epoch, stream])).random_raw(size)
        drawn = np.argsort(bits)
        ordered = bits[drawn]
        if (
            ordered[1:] == ordered[:-1]
        ).any():  # once in 10^8 blocks; which comes first depends on the machine
            return np.argsort(bits, kind="stable")
        return drawn
