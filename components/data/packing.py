"""Documents into token sequences of one length, planned from token counts alone, before a byte is read.

A sequence is `sequence_length + 1` slots: inputs are all but the last, targets all but the first. A plan says
which piece of which sample fills which slots. Sequences never leave their shard, so the plan of a shard is a
function of its index.

- `concatenate` fills every slot: documents follow each other, and a sequence starts where the one before it
  ended. Nothing is padded; a document may be cut anywhere, and the end of a shard that fills no sequence is
  left out. The usual choice.
- `whole_documents` cuts only what does not fit into one sequence and packs the pieces best fit decreasing
  (Ding et al. 2024, arXiv 2404.10830): fewer cuts, a few padded slots.

With `mask_documents` a token attends to its own document alone, and a document's last token has no target.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from components import plugins

Ints = NDArray[np.int64]


class Config(plugins.Config):
    """How documents become sequences of one length."""

    kind: Literal["concatenate", "whole_documents"] = "concatenate"
    """`concatenate` cuts documents anywhere, `whole_documents` only those longer than a sequence."""

    mask_documents: bool = Field(default=False)
    """A token sees its own document alone; costs attention a mask of length x length."""


class Piece(NamedTuple):
    """Tokens `start:stop` of one sample of a shard."""

    row: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Plan:
    """The sequences of one shard."""

    pieces: Ints
    """Row, start and stop of each piece: [pieces, 3]."""
    bounds: Ints
    """Where the pieces of each sequence begin, and one more: [sequences + 1]."""
    tokens: int
    """In the shard."""
    slots: int
    """In a sequence: one more than its length."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def sequence(self, number: int) -> list[Piece]:
        """What fills a sequence, in order; what is left of it is padding."""
        first, last = self.bounds[number : number + 2]
        return [Piece(*piece) for piece in self.pieces[first:last].tolist()]

    @property
    def waste(self) -> Waste:
        """What the plan costs."""
        lengths = self.pieces[:, 2] - self.pieces[:, 1]
        sequences = np.repeat(np.arange(len(self)), np.diff(self.bounds))
        filled = np.bincount(sequences, weights=lengths, minlength=len(self)).astype(np.int64)
        return Waste(
            sequences=len(self),
            slots=len(self) * self.slots,
            padding=int(len(self) * self.slots - filled.sum()),
            left_out=self.tokens - _covered(self.pieces),
            cuts=len(self.pieces) - len(np.unique(self.pieces[:, 0])),
        )


@dataclass(frozen=True)
class Waste:
    """What packing costs, in slots and tokens."""

    sequences: int
    slots: int
    padding: int
    """Slots without a token."""
    left_out: int
    """Tokens in no sequence: the end of a shard."""
    cuts: int
    """Places at which a document is cut."""

    def __add__(self, other: Waste) -> Waste:
        return Waste(
            *(mine + yours for mine, yours in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def padded_share(self) -> float:
        """Share of the slots that carry nothing."""
        return self.padding / self.slots if self.slots else 0.0


def plan(lengths: Ints, sequence_length: int, kind: str) -> Plan:
    """Pack the samples of a shard, whose token counts are given, into sequences."""
    slots = sequence_length + 1
    pack = _concatenated if kind == "concatenate" else _best_fit
    pieces, bounds = pack(np.asarray(lengths, dtype=np.int64), slots)
    return Plan(pieces, bounds, int(np.sum(lengths)), slots)


def concatenated_count(tokens: int, sequence_length: int) -> int:
    """Sequences in a shard of so many tokens; this plan needs no index to be counted."""
    return max(tokens - 1, 0) // sequence_length


def _concatenated(lengths: Ints, slots: int) -> tuple[Ints, Ints]:
    """Cut the line of all tokens every `slots - 1`, and where each sample begins."""
    ends = np.cumsum(lengths)
    count = concatenated_count(int(ends[-1]) if len(ends) else 0, slots - 1)
    starts = np.arange(count) * (slots - 1)
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(ends, starts + slots - 1, side="right")
    bounds = np.concatenate(([0], np.cumsum(last - first + 1)))
    sequence = np.repeat(np.arange(count), last - first + 1)
    rows = np.arange(bounds[-1]) - bounds[sequence] + first[sequence]
    before = ends[rows] - lengths[rows]
    begin = np.maximum(starts[sequence] - before, 0)
    stop = np.minimum(starts[sequence] + slots - before, lengths[rows])
    pieces = np.stack([rows, begin, stop], axis=1)
    empty = begin == stop
    if empty.any():
        bounds = np.concatenate(([0], np.cumsum(np.bincount(sequence[~empty], minlength=count))))
    return pieces[~empty], bounds


def _best_fit(lengths: Ints, slots: int) -> tuple[Ints, Ints]:
    """Longest piece first, each into the fullest sequence that still has room for it."""
    pieces = _cut(lengths, slots)
    order = np.argsort(-(pieces[:, 2] - pieces[:, 1]), kind="stable")
    room: list[tuple[int, int]] = []
    sequences: list[list[int]] = []
    for number in order.tolist():
        size = int(pieces[number, 2] - pieces[number, 1])
        place = bisect_left(room, (size, -1))
        if place == len(room):
            left, sequence = slots, len(sequences)
            sequences.append([])
        else:
            left, sequence = room.pop(place)
        sequences[sequence].append(number)
        if left > size:
            insort(room, (left - size, sequence))
    filled = [number for sequence in sequences for number in sorted(sequence)]
    bounds = np.concatenate(([0], np.cumsum([len(sequence) for sequence in sequences], dtype=np.int64)))
    return pieces[filled], bounds.astype(np.int64)


def _cut(lengths: Ints, slots: int) -> Ints:
    """Samples in pieces of at most `slots`; neighbours share a token, so that each token is a target once."""
    step = slots - 1
    counts = np.where(lengths > 1, np.maximum(-(-(lengths - 1) // step), 1), 0)
    rows = np.repeat(np.arange(len(lengths)), counts)
    turn = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([rows, turn * step, np.minimum(turn * step + slots, lengths[rows])], axis=1)


def _covered(pieces: Ints) -> int:
    """Tokens in any piece, those shared by two counted once."""
    lengths = pieces[:, 2] - pieces[:, 1]
    by_place = pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))]
    shared = (by_place[1:, 0] == by_place[:-1, 0]) & (by_place[1:, 1] < by_place[:-1, 2])
    return int(lengths.sum() - np.count_nonzero(shared))
