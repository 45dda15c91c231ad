"""Training batches by arithmetic: which windows a step reads follows from (seed, step, manifest) alone.

The position in the data is one integer, the step. Any number of ranks reads the same global batch, so a job
resumes at any world size without repeating or losing a token, and it resumes at once. Every epoch has an
order of its own. The price: a permutation of all windows in memory, eight bytes a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from components.data import manifest as manifests
from components.data.document import Document
from components.data.integrity import read_shard
from components.errors import ConfigError


class TokenStream:
    """One split of a data set as windows of `sequence_length + 1` token ids, verified when opened.

    Neighbours overlap by one token: the last target of one is the first input of the next.
    """

    def __init__(self, folder: Path, split: str, sequence_length: int, seed: int) -> None:
        self.manifest = manifests.read(str(folder))
        self.sequence_length, self.seed = sequence_length, seed
        self.tokens = _tokens(folder, self.manifest, split)
        self.num_windows = (len(self.tokens) - 1) // sequence_length
        self._order: tuple[int, NDArray[np.int64]] | None = None
        if self.num_windows < 1:
            raise ConfigError(
                f"sequence_length={sequence_length} needs {sequence_length + 1} tokens, split '{split}' of "
                f"{folder} has {len(self.tokens)}; lower it or add documents"
            )

    def batch(self, step: int, batch_size: int, rank: int, world_size: int) -> NDArray[np.int64]:
        """This rank's rows of the global batch of a step: [batch_size / world_size, sequence_length + 1]."""
        if batch_size % world_size:
            raise ConfigError(
                f"batch_size={batch_size} does not divide over {world_size} ranks; "
                f"use {batch_size + -batch_size % world_size}"
            )
        share = batch_size // world_size
        first = step * batch_size + rank * share
        return np.stack([self.window(position) for position in range(first, first + share)])

    def window(self, position: int) -> NDArray[np.int64]:
        """The window at a position of the endless sequence of epochs."""
        epoch, place = divmod(position, self.num_windows)
        start = int(self._order_of(epoch)[place]) * self.sequence_length
        return self.tokens[start : start + self.sequence_length + 1].astype(np.int64)

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, _permutation(self.num_windows, self.seed, epoch))
        return self._order[1]


def fixed_batch(folder: Path, num_sequences: int, sequence_length: int) -> NDArray[np.int64]:
    """The same held-out windows for everyone who asks: [num_sequences, sequence_length + 1]."""
    stream = TokenStream(folder, "held_out", sequence_length, seed=0)
    if num_sequences > stream.num_windows:
        raise ConfigError(
            f"{num_sequences} held-out sequences of {sequence_length} tokens were asked for, {folder} has "
            f"{stream.num_windows}; ask for fewer or raise data.shards.held_out_share"
        )
    return stream.batch(0, num_sequences, rank=0, world_size=1)


def documents(folder: Path, split: str) -> Iterator[Document]:
    """The texts of a split, in the order of its shards, each shard verified before its first is given."""
    for shard in manifests.read(str(folder)).shards_of(split):
        for sample in read_shard(str(folder), shard):
            yield sample.document


def _tokens(folder: Path, manifest: manifests.Manifest, split: str) -> NDArray[np.unsignedinteger]:
    if split not in manifest.splits:
        raise ConfigError(f"no split '{split}' in {folder}; there are {', '.join(manifest.splits)}")
    samples = (sample for shard in manifest.shards_of(split) for sample in read_shard(str(folder), shard))
    return np.concatenate([sample.tokens for sample in samples])


def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """An order by sorting random bits: numpy keeps a generator's bits the same, but not its `permutation`."""
    bits = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(size)
    return np.argsort(bits, kind="stable")
