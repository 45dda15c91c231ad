"""Training batches by arithmetic: what a row of a step holds follows from (seed, step, manifest) alone.

The position in the data is one integer. Any number of ranks and loader workers reads the same global batch,
so a job resumes at any world size without repeating or losing a sequence, and it resumes at once. Epochs
follow each other without end and all ranks hold equally many rows, so none waits at the end of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.data import mixture as mixtures
from components.data import packing as packings
from components.data.document import Document
from components.data.left_out import Ranges, batch_of
from components.data.manifest import Shard
from components.data.order import BLOCK_ITEMS, Order
from components.data.packing import Piece, Plan
from components.data.position import Position
from components.data.reader import Drop, Reader
from components.data.recent import Recent
from components.data.tokenizer import END_OF_TEXT_ID
from components.errors import ConfigError, ShardIntegrityError

IGNORED = -100
"""A target that no loss counts: padding, a document's last token, a sample that was dropped."""
PADDING = -1
PLAN_BYTES = 256 << 20
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """One rank's rows of a step: each array is [rows, sequence_length]."""

    inputs: Ints
    targets: Ints
    """The token after each input, or IGNORED."""
    documents: Ints
    """Which document of its row each input is from, counted from 0; PADDING where there is none."""

    @property
    def positions(self) -> Ints:
        """Of each input within its document's piece: 0, 1, 2, ... and from 0 again."""
        length = self.documents.shape[1]
        starts = np.ones_like(self.documents, dtype=bool)
        starts[:, 1:] = self.documents[:, 1:] != self.documents[:, :-1]
        places = np.arange(length) * np.ones_like(self.documents)
        begins: Ints = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
        return places - begins

    @property
    def num_tokens(self) -> int:
        """Inputs that are no padding."""
        return int(np.count_nonzero(self.documents != PADDING))

    @property
    def num_targets(self) -> int:
        """Targets that count."""
        return int(np.count_nonzero(self.targets != IGNORED))


class Origin(NamedTuple):
    """Where a row of a batch comes from."""

    source: str
    epoch: int
    shard: Shard
    sequence: int
    """Of the shard's plan."""
    pieces: list[Piece]


class TokenStream:
    """One split of a data set as global batches of packed sequences."""

    def __init__(
        self,
        reader: Reader,
        split: str,
        *,
        sequence_length: int,
        batch_size: int,
        seed: int,
        packing: packings.Config = packings.Config(),  # noqa: B008 - frozen
        mixture: Mapping[str, float] | None = None,
        drop: Drop | None = None,
        left_out: Ranges = (),
        block_items: int = BLOCK_ITEMS,
    ) -> None:
        self.reader, self.split, self.drop = reader, split, drop
        self.sequence_length, self.batch_size, self.seed = sequence_length, batch_size, seed
        self.left_out = left_out
        self.packing, self.mixture, self.block_items = packing, dict(mixture or {}), block_items
        self._refuse_unknown_names()
        counts = mixtures.counts_per_batch(mixture, batch_size) if mixture else {"": batch_size}
        self._rows = mixtures.rows_of(counts)
        self._parts = {
            name: _Part(self, reader.manifest.shards_of(split, name or None), rows, block_items)
            for name, rows in counts.items()
        }
        for name, part in self._parts.items():
            self._refuse_too_few(name, part)

    @property
    def num_sequences(self) -> int:
        """In one epoch, over all sources."""
        return sum(len(part.order) for part in self._parts.values())

    @property
    def rows_per_batch(self) -> dict[str, int]:
        """Rows of each source in every global batch; without a mixture all are of source ""."""
        return {name: part.rows for name, part in self._parts.items()}

    def epochs(self, step: int) -> dict[str, float]:
        """How often each source was gone through before a step."""
        read = self.number(step)
        return {name: read * part.rows / len(part.order) for name, part in self._parts.items()}

    @property
    def waste(self) -> packings.Waste:
        """What packing costs, over all shards."""
        plans = (part.plan(i) for part in self._parts.values() for i in range(len(part.shards)))
        first, *others = (plan.waste for plan in plans)
        return sum(others, start=first)

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> Batch:
        """This rank's rows of the global batch of a step, which is counted from 0."""
        if self.batch_size % world_size:
            raise ConfigError(
                f"batch_size={self.batch_size} does not divide over {world_size} ranks; "
                f"use {self.batch_size + -self.batch_size % world_size}"
            )
        share = self.batch_size // world_size
        slots = np.full((share, self.sequence_length + 1), END_OF_TEXT_ID, dtype=np.int64)
        documents = np.full_like(slots, PADDING)
        for place in range(share):
            self._fill(slots[place], documents[place], self.origin(step, rank * share + place))
        return self._batch(slots, documents)

    def number(self, step: int) -> int:
        """Which batch of the order a step trains on: its own number, but for those that are left out."""
        return batch_of(step, self.left_out)

    def origin(self, step: int, row: int) -> Origin:
        """Where a row of the global batch of a step comes from; reads no sample."""
        name, turn = self._rows[row]
        return self._parts[name].origin(self.number(step), turn, name)

    def position(self, step: int) -> Position:
        """What a checkpoint keeps to go on with the batch of this step."""
        return Position(
            manifest_sha256=self.reader.digest,
            split=self.split,
            seed=self.seed,
            samples_consumed=step * self.batch_size,
            batch_size=self.batch_size,
            sequence_length=self.sequence_length,
            packing=self.packing,
            mixture=self.mixture,
            left_out=self.left_out,
            block_items=self.block_items,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Another process has its own way to tell of what it drops."""
        return {**self.__dict__, "drop": None}

    def _fill(self, slots: Ints, documents: Ints, origin: Origin) -> None:
        place = 0
        for number, piece in enumerate(origin.pieces):
            end = place + len(piece)
            try:
                tokens = self.reader.tokens(origin.shard, piece.row)
            except ShardIntegrityError as error:
                if self.drop is None:
                    raise
                self.drop(error, origin.shard, piece.row)
            else:
                slots[place:end] = tokens[piece.start : piece.stop]
                documents[place:end] = number
            place = end

    def _batch(self, slots: Ints, documents: Ints) -> Batch:
        counted = (documents[:, :-1] != PADDING) & (documents[:, 1:] != PADDING)
        if self.packing.mask_documents or self.packing.kind == "whole_documents":
            counted &= documents[:, :-1] == documents[:, 1:]
        targets = np.where(counted, slots[:, 1:], IGNORED)
        return Batch(slots[:, :-1].copy(), targets, documents[:, :-1].copy())

    def _refuse_unknown_names(self) -> None:
        manifest = self.reader.manifest
        if self.split not in manifest.splits:
            there = ", ".join(manifest.splits)
            raise ConfigError(f"no split '{self.split}' in {self.reader.url}; there are {there}")
        sources = {shard.source for shard in manifest.shards_of(self.split)}
        if self.mixture and (unknown := sorted(set(self.mixture) - sources)):
            raise ConfigError(
                f"training.mixture names {', '.join(unknown)}; {self.reader.url} has "
                f"{', '.join(sorted(filter(None, sources))) or 'no named source'}; use those"
            )

    def _refuse_too_few(self, name: str, part: _Part) -> None:
        if not len(part.order):
            tokens = max((shard.tokens for shard in part.shards), default=0)
            of = f"source '{name}' of split '{self.split}'" if name else f"split '{self.split}'"
            raise ConfigError(
                f"sequence_length={self.sequence_length} needs {self.sequence_length + 1} tokens in a shard, "
                f"the largest of {of} of {self.reader.url} has {tokens}; lower it or add documents"
            )


class _Part:
    """One source's shards: their order and their plans."""

    def __init__(self, stream: TokenStream, shards: list[Shard], rows: int, block_items: int) -> None:
        self.stream, self.shards, self.rows = stream, shards, rows
        self._plans: Recent[Plan] = Recent(PLAN_BYTES)
        self.order = Order(
            [self._count(i) for i in range(len(shards))],
            seed=stream.seed,
            digest=stream.reader.digest,
            block_items=block_items,
        )

    def origin(self, step: int, turn: int, name: str) -> Origin:
        position = step * self.rows + turn
        number, sequence = self.order.locate(position)
        pieces = self.plan(number).sequence(sequence)
        return Origin(name, position // len(self.order), self.shards[number], sequence, pieces)

    def plan(self, number: int) -> Plan:
        """Of the shard at a place in the list."""
        if (known := self._plans.get(number)) is not None:
            return known
        lengths = self.stream.reader.index(self.shards[number])["tokens"]
        made = packings.plan(lengths, self.stream.sequence_length, self.stream.packing.kind)
        return self._plans.put(number, made, made.pieces.nbytes + made.bounds.nbytes)

    def _count(self, number: int) -> int:
        if self.stream.packing.kind == "concatenate":
            return packings.concatenated_count(self.shards[number].tokens, self.stream.sequence_length)
        return len(self.plan(number))


def fixed_batch(url: str, num_sequences: int, sequence_length: int) -> Ints:
    """The same held-out windows for everyone who asks: [num_sequences, sequence_length + 1].

    Neither packing nor mixture of the training run changes them: losses stay comparable.
    """
    with Reader(url) as reader:
        stream = TokenStream(
            reader, "held_out", sequence_length=sequence_length, batch_size=num_sequences, seed=0
        )
        if num_sequences > stream.num_sequences:
            raise ConfigError(
                f"{num_sequences} held-out sequences of {sequence_length} tokens were asked for, {url} has "
                f"{stream.num_sequences}; ask for fewer or raise data.shards.held_out_share"
            )
        batch = stream.batch(0)
    return np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1)


def documents(url: str, split: str) -> Iterator[Document]:
    """The texts of a split, in the order of its shards, each compared with its checksum."""
    with Reader(url) as reader:
        for shard in reader.manifest.shards_of(split):
            for row in range(shard.samples):
                yield reader.sample(shard, row).document
