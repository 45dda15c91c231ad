"""Single documents in random order, as fast as an interpreter can compare each with its checksum.

For what reads documents rather than token sequences: evaluation, preference pairs, another trainer's loader.
The order is the same arithmetic as the token stream's. A run of positions is looked up at once in a table of
offsets that fills as shards are touched; what remains a sample is one read, one checksum, one slice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.data.index import MEMBER, checksum
from components.data.order import BLOCK_ITEMS, Order
from components.data.reader import Drop, Reader, most_open_files
from components.errors import ConfigError, ShardIntegrityError

AT_ONCE = 256
"""Samples read together, at most: each may need a file of its own, and a reader keeps only so many open."""


class SampleStream:
    """One member of every sample of a split, in an endless sequence of epochs."""

    def __init__(
        self,
        reader: Reader,
        split: str,
        *,
        seed: int = 0,
        kind: str = "txt",
        drop: Drop | None = None,
        block_items: int = BLOCK_ITEMS,
    ) -> None:
        self.reader, self.kind, self.drop = reader, kind, drop
        self.shards = reader.manifest.shards_of(split)
        counts = [shard.samples for shard in self.shards]
        if not sum(counts):
            known = ", ".join(reader.manifest.splits)
            raise ConfigError(f"split '{split}' of {reader.url} has no sample; there are {known}")
        self.order = Order(counts, seed=seed, digest=reader.digest, block_items=block_items)
        self._table: _Table | None = None

    def __len__(self) -> int:
        """Samples in an epoch."""
        return len(self.order)

    def __getitem__(self, position: int) -> bytes:
        """The member at a position of the endless sequence."""
        [content] = self.read(position, position + 1)
        return content

    def read(self, start: int, stop: int, step: int = 1) -> Iterator[bytes]:
        """The members at `start, start + step, ...` below `stop`: a rank or worker reads its own stride.

        A sample that was dropped is left out; those after it keep their positions.
        """
        while start < stop:
            epoch, place = divmod(start, len(self.order))
            number, inside = divmod(place, self.order.block_items)
            table = self._table_of(epoch, number)
            at_once = min(AT_ONCE, most_open_files())
            end = min(len(table), inside + at_once * step, inside + stop - start)
            places = np.arange(inside, end, step)
            yield from self._contents(table, places)
            start += step * len(places)

    def _table_of(self, epoch: int, number: int) -> _Table:
        if self._table is None or (self._table.epoch, self._table.number) != (epoch, number):
            self._table = _Table(self, epoch, number)
        return self._table

    def _contents(self, table: _Table, places: NDArray[np.int64]) -> list[bytes]:
        found = table.look_up(places)
        contents = list(map(os.pread, found.descriptors, found.sizes, found.starts))
        if not self.reader.verify or list(map(checksum, contents)) == found.checksums:
            return contents
        rows = zip(places.tolist(), contents, found.checksums, strict=True)
        mended = (
            content if checksum(content) == expected else self._again(table, place)
            for place, content, expected in rows
        )
        return [content for content in mended if content is not None]

    def _again(self, table: _Table, place: int) -> bytes | None:
        """The member as the reader finds it, by itself; nothing when it is damaged and may be left out."""
        shard, row = self.shards[int(table.block.shards[place])], int(table.block.rows[place])
        try:
            return self.reader.content(shard, row, self.kind)
        except ShardIntegrityError as fault:
            if self.drop is None:
                raise
            self.drop(fault, shard, row)
            return None


class _Found(NamedTuple):
    descriptors: list[int]
    starts: list[int]
    sizes: list[int]
    checksums: list[int]


class _Table:
    """Where the members of one block lie; filled a shard at a time, when the shard is first needed."""

    def __init__(self, stream: SampleStream, epoch: int, number: int) -> None:
        self.stream, self.epoch, self.number = stream, epoch, number
        self.block = stream.order.block(epoch, number)
        self._places = np.argsort(self.block.shards, kind="stable")
        self._sorted = self.block.shards[self._places]
        self._rows = np.empty(len(self.block.shards), dtype=MEMBER)
        self._loaded = np.zeros(len(stream.shards), dtype=bool)

    def __len__(self) -> int:
        return len(self._rows)

    def look_up(self, places: NDArray[np.int64]) -> _Found:
        shards = self.block.shards[places]
        for shard in np.unique(shards[~self._loaded[shards]]).tolist():
            self._load(shard)
        rows = self._rows[places]
        return _Found(
            self._descriptors(shards),
            rows["start"].tolist(),
            rows["bytes"].tolist(),
            rows["xxh3"].tolist(),
        )

    def _load(self, shard: int) -> None:
        first, last = np.searchsorted(self._sorted, [shard, shard + 1])
        places = self._places[first:last]
        index = self.stream.reader.index(self.stream.shards[shard])
        self._rows[places] = index[self.stream.kind][self.block.rows[places]]
        self._loaded[shard] = True

    def _descriptors(self, shards: NDArray[np.int64]) -> list[int]:
        """An open file for each position; only as many are open at once as the reader allows."""
        reader, known = self.stream.reader, {}
        for shard in np.unique(shards).tolist():
            known[shard] = reader.descriptor(self.stream.shards[shard])
        return [known[shard] for shard in shards.tolist()]
