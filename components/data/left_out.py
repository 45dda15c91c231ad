"""Batches of the order that no step trains on, as ranges of their numbers: first and last, counted from 0.

Steps go on counting without a gap, and what each trains on follows from its number and these ranges alone. So
a checkpoint that carries them is resumed exactly, by any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Ascending and apart from each other, as `joined` makes them."""


def batch_of(step: int, left_out: Ranges) -> int:
    """The batch of the order that a step trains on; both are counted from 0."""
    number = step
    for first, last in left_out:
        if first <= number:
            number += last - first + 1
    return number


def joined(known: Ranges, more: Iterable[tuple[int, int]], since: int = 0) -> Ranges:
    """`known` and what is new, in order; what comes before batch `since` has been trained on and stays."""
    new = [(max(first, since), last) for first, last in more if last >= since]
    found: list[tuple[int, int]] = []
    for first, last in sorted([*known, *new]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
