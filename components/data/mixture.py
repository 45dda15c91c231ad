"""Exact shares of several sources in every batch, and which row of it each one fills."""

from __future__ import annotations

import math
from collections.abc import Mapping

from components.errors import ConfigError


def counts_per_batch(proportions: Mapping[str, float], batch_size: int) -> dict[str, int]:
    """Rows of each source in every batch: largest remainder, so they add up and never change.

    The order in which they are named does not matter. A source whose share of a batch rounds to nothing is
    an error: it would never be read.
    """
    if bad := {name: share for name, share in proportions.items() if not 0 < share < math.inf}:
        raise ConfigError(f"training.mixture has proportions {bad}; each is a number above 0")
    total = sum(proportions.values())
    exact = {name: batch_size * proportions[name] / total for name in sorted(proportions)}
    counts = {name: int(rows) for name, rows in exact.items()}
    left = batch_size - sum(counts.values())
    for name in sorted(exact, key=lambda name: (counts[name] - exact[name], name))[:left]:
        counts[name] += 1
    if starved := sorted(name for name, rows in counts.items() if rows == 0):
        smallest = min(proportions[name] / total for name in starved)
        raise ConfigError(
            f"training.mixture gives {', '.join(starved)} less than one row of a batch of {batch_size}; "
            f"raise training.batch_size to {round(1 / smallest + 0.5)} or its proportion"
        )
    return counts


def rows_of(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """For each row of a batch its source and the how-manieth of that source it is, evenly interleaved.

    Even, so that the rows of any one rank have nearly the proportions of the whole batch.
    """
    places = [
        ((turn + 0.5) / rows, number, name, turn)
        for number, (name, rows) in enumerate(counts.items())
        for turn in range(rows)
    ]
    return [(name, turn) for _, _, name, turn in sorted(places)]
