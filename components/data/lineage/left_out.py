"""Who the documents are that a data set leaves out for the sake of others, by name.

A data set names them by key; here the largest groups of copies and the first leaks get their paths back, at
the cost of two passes over the list and, of the shards, only the indexes and the members asked for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from components.data.lineage.pieces import SET_ASIDE, member, set_aside_lines
from components.data.reader import Reader

CLUSTERS, COPIES, LEAKS = 10, 12, 20
"""Clusters, copies of each and leaks that are named; the others are counted."""


@dataclass(frozen=True)
class Cluster:
    """A document and those set aside because they are almost the same."""

    first: str
    """Its path."""
    kept: bool
    """Whether it is in the data set: it may have been set aside later, as a leak."""
    size: int
    """Copies in all."""
    copies: list[str]
    """Paths of the first."""


@dataclass(frozen=True)
class Leak:
    """A document that holds a passage of what a model is measured on."""

    path: str
    of: str
    """Path of the held-out document, or name of the evaluation set."""
    held_out: bool


@dataclass(frozen=True)
class LeftOut:
    """Largest clusters of near copies first; leaks in the order read."""

    clusters: list[Cluster]
    leaks: list[Leak]


def left_out(reader: Reader) -> LeftOut:
    """The groups and leaks to show; none where a data set has no such list."""
    sizes: Counter[str] = Counter()
    leaks: list[dict[str, str]] = []
    for one in _set_aside(reader):
        if one["reason"] == "near_duplicate":
            sizes[one["of"]] += 1
        elif one["reason"] == "contaminated" and len(leaks) < LEAKS:
            leaks.append(one)
    largest = dict(sizes.most_common(CLUSTERS))
    copies: dict[str, list[str]] = {key: [] for key in largest}
    kept = paths_of(reader, {*largest, *(one["of"] for one in leaks)})
    leaked: dict[str, str] = {}
    for one in _set_aside(reader):
        if one["reason"] == "near_duplicate" and one["of"] in copies:
            copies[one["of"]].append(one["path"])
            del copies[one["of"]][COPIES:]
        elif one["reason"] == "contaminated" and one["key"] in copies:
            leaked[one["key"]] = one["path"]
    return LeftOut(
        [
            Cluster(kept.get(key) or leaked.get(key, key), key in kept, size, copies[key])
            for key, size in largest.items()
        ],
        [Leak(one["path"], kept.get(one["of"], one["of"]), one["of"] in kept) for one in leaks],
    )


def paths_of(reader: Reader, keys: set[str]) -> dict[str, str]:
    """Paths of the documents of some keys, of those that lie in the data set."""
    import numpy as np

    wanted = np.array(sorted(key.encode() for key in keys), dtype="S16")
    found: dict[str, str] = {}
    for shard in reader.manifest.shards:
        if len(found) == len(keys):
            break
        for row in np.flatnonzero(np.isin(reader.index(shard)["key"], wanted)).tolist():
            facts = json.loads(member(reader, shard, row, "json"))
            found[reader.key(shard, row)] = str(facts["path"])
    return found


def _set_aside(reader: Reader) -> Iterator[dict[str, str]]:
    if SET_ASIDE in reader.manifest.files:
        yield from map(json.loads, set_aside_lines(reader))
