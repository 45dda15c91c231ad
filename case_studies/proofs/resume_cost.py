"""Going on at 90% of the data costs what starting costs: at most 0.1 s, and at most 1 KB in the checkpoint.

Nothing is replayed: the place of a batch follows from one integer. Two measurements. The order alone, of two
thousand million sequences in a hundred thousand shards, from nothing to the first place. And the first batch
of a real data set, from opening the manifest, at the start and at 90% of an epoch; it reads the samples of
that batch and no other.

What grows with the corpus is opening it: the manifest of a hundred thousand shards takes half a second to
parse, once a job, wherever it goes on. And `whole_documents` must plan every shard before it knows how many
sequences there are, so its first batch reads every index; `concatenate` reads the indexes it needs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from case_studies.proofs import _data
from components.data import manifest as manifests
from components.data.manifest import Manifest, Shard, Source, Split
from components.data.order import Order
from components.data.packing import Config as Packing
from components.data.reader import Reader
from components.data.stream import TokenStream

TITLE = "Resuming at 90% costs what starting costs"
MOST_SECONDS = 0.1
MOST_BYTES = 1024
SHARDS = 100_000
ITEMS_PER_SHARD = 20_000
REPEATS = 15
PLACE = 0.9


def prove(*, seed: int = 0, count: int = 2000) -> dict[str, Any]:
    """Measure both, the real data set with that many documents; the least of a few runs counts."""
    order = measured_order(seed)
    with tempfile.TemporaryDirectory() as scratch:
        parts = (_data.Part("train", (64,) * (count // 64)), _data.Part("held_out", (2,)))
        folder = _data.make(Path(scratch) / "data", parts, seed=seed, longest=2000)
        real = {kind: measured_data_set(folder, kind) for kind in ("concatenate", "whole_documents")}
    seconds = [order["seconds_at_90"], *(one["seconds_at_90"] for one in real.values())]
    holds = max(seconds) <= MOST_SECONDS and max(one["state_bytes"] for one in real.values()) <= MOST_BYTES
    return {
        "holds": holds,
        "most_seconds": MOST_SECONDS,
        "most_bytes": MOST_BYTES,
        "order": order,
        "real": real,
        "manifest_of_100000_shards_seconds": _least(_parse_large()),
    }


def measured_order(seed: int) -> dict[str, Any]:
    """From nothing to a place of a very large order."""
    counts = [ITEMS_PER_SHARD // 2 + number % (ITEMS_PER_SHARD + 1) for number in range(SHARDS)]
    total = sum(counts)

    def at(share: float) -> Callable[[], object]:
        return lambda: Order(counts, seed=seed, digest="5" * 64).locate(int(share * total))

    return {
        "items": total,
        "shards": SHARDS,
        "seconds_at_0": _least(at(0)),
        "seconds_at_90": _least(at(PLACE)),
    }


def measured_data_set(folder: Path, kind: str) -> dict[str, Any]:
    """From a URL to the first batch, and what a checkpoint holds."""
    with Reader(str(folder)) as reader:
        stream = _opened(reader, kind)
        step = int(PLACE * stream.num_sequences / stream.batch_size)
        state = len(stream.position(step).model_dump_json().encode())
        sequences = stream.num_sequences
    return {
        "sequences": sequences,
        "bytes": sum(path.stat().st_size for path in _data.files_of(folder)),
        "state_bytes": state,
        "seconds_at_0": _least(lambda: first_batch(folder, kind, 0)),
        "seconds_at_90": _least(lambda: first_batch(folder, kind, step)),
        "samples_read": first_batch(folder, kind, step),
        "samples_in_batch": _samples_of(folder, kind, step),
    }


def first_batch(folder: Path, kind: str, step: int) -> int:
    """Open a data set, read the batch of a step, and say how many samples were read for it."""
    reader = _Counting(str(folder))
    with reader:
        _opened(reader, kind).batch(step)
        return len(reader.seen)


def _samples_of(folder: Path, kind: str, step: int) -> int:
    with Reader(str(folder)) as reader:
        stream = _opened(reader, kind)
        origins = [stream.origin(step, row) for row in range(stream.batch_size)]
        return len({(one.shard.name, piece.row) for one in origins for piece in one.pieces})


class _Counting(Reader):
    """Keeps which members were read from a tar."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seen: set[tuple[str, int]] = set()

    def content(self, shard: Shard, row: int, kind: str) -> bytes:
        """Count, and read."""
        self.seen.add((shard.name, row))
        return super().content(shard, row, kind)


def _opened(reader: Reader, kind: str) -> TokenStream:
    packing = Packing.model_validate({"kind": kind})
    return TokenStream(reader, "train", sequence_length=256, batch_size=16, seed=1, packing=packing)


def _parse_large() -> Callable[[], object]:
    shards = [
        Shard(
            name=f"train-{number:06d}.tar",
            split="train",
            sha256="a" * 64,
            bytes=1 << 28,
            samples=ITEMS_PER_SHARD,
            tokens=ITEMS_PER_SHARD * 1000,
            index_sha256="b" * 64,
            index_bytes=1 << 21,
        )
        for number in range(SHARDS)
    ]
    whole = Split(documents=SHARDS * ITEMS_PER_SHARD, tokens=SHARDS * ITEMS_PER_SHARD * 1000)
    content = manifests.to_bytes(
        Manifest(
            shards=shards,
            files={},
            source=Source(kind="drawn", digest="0" * 64, documents=whole.documents, characters=1),
            vocab_size=50_000,
            splits={"train": whole},
            unigram_cross_entropy=7.0,
            set_aside={},
        )
    )
    return lambda: manifests.parse(content, "memory://large")


def _least(work: Callable[[], object]) -> float:
    """Seconds of the quickest of a few runs: others share this machine."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return round(min(seconds), 5)
