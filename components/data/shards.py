"""Samples in WebDataset tars with an index beside each: plain files, and equal bytes for equal documents."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from components import plugins, storage
from components.data import tar
from components.data.document import Document
from components.data.manifest import Shard

if TYPE_CHECKING:
    from numpy.typing import NDArray

WRITE_AHEAD_BYTES = 1 << 20
_to_json = json.JSONEncoder(sort_keys=True).encode  # json.dumps would make an encoder a sample


class Config(plugins.Config):
    """How samples are laid out in tar files."""

    documents_per_shard: int = Field(default=256, ge=1)
    """Documents in one tar."""

    held_out_share: float = Field(default=0.06, gt=0, lt=0.5)
    """Share of documents kept for evaluation; a document is wholly in one split."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One document of a shard and its token ids, which end with the end-of-text id."""

    document: Document
    split: str
    tokens: NDArray[Any]


def split_of(document: Document, config: Config) -> str:
    """Where a document belongs: its content decides, so adding documents never moves another."""
    drawn = hashlib.sha256(b"split:" + document.sha256.encode()).digest()
    return "held_out" if int.from_bytes(drawn[:8]) < config.held_out_share * 2**64 else "train"


def write_shard(path: Path, split: str, samples: Iterable[Sample], source: str = "") -> Shard:
    """Write a tar and its index, and flush both; names, times and owners are fixed."""
    from components.data import index

    rows: list[tuple[Any, ...]] = []
    digest, offset = hashlib.sha256(), 0
    with path.open("wb", WRITE_AHEAD_BYTES) as file:
        for sample in samples:
            record, row = _record(sample, offset)
            file.write(record)
            digest.update(record)
            offset += len(record)
            rows.append(row)
        file.write(closing := tar.end(offset))
        digest.update(closing)
        _flush(file)
    import numpy as np

    table = np.array(rows, dtype=index.SAMPLE)
    content = index.to_bytes(table)
    with path.with_name(index.name_of(path.name)).open("wb") as file:
        file.write(content)
        _flush(file)
    return Shard(
        name=path.name,
        split=split,
        source=source,
        sha256=digest.hexdigest(),
        bytes=offset + len(closing),
        samples=len(rows),
        tokens=int(table["tokens"].sum()),
        index_sha256=storage.sha256_of_bytes(content),
        index_bytes=len(content),
    )


def _record(sample: Sample, offset: int) -> tuple[bytes, tuple[Any, ...]]:
    """A sample's bytes in the tar, and its row of the index."""
    from components.data.index import checksum

    pieces: list[bytes] = []
    parts: list[tuple[int, int, int]] = []
    place = offset
    key = sample.document.key.encode()
    for kind, content in _members(sample):
        size, pad = len(content), tar.padding(len(content))
        pieces += (tar.header(key + kind, size), content, pad)
        parts.append((place + tar.BLOCK, size, checksum(content)))
        place += tar.BLOCK + size + len(pad)
    return b"".join(pieces), (key, offset, place - offset, len(sample.tokens), *parts)


def _members(sample: Sample) -> Iterator[tuple[bytes, bytes]]:
    from components.data import npy

    document = sample.document
    facts = {
        "path": document.path,
        "sha256": document.sha256,
        "source": document.source,
        "split": sample.split,
    }
    yield b".json", _to_json(facts).encode()
    yield b".npy", npy.to_bytes(sample.tokens)
    yield b".txt", document.text.encode()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
