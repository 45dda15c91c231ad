"""Samples in WebDataset tars: plain, readable by any tar tool, and equal bytes for equal documents."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import Field

from components import plugins, storage
from components.data.document import Document
from components.data.integrity import Sample
from components.data.manifest import SPLITS, Shard
from components.errors import DataError


class Config(plugins.Config):
    """How samples are laid out in tar files."""

    documents_per_shard: int = Field(default=256, ge=1)
    """Documents in one tar."""

    held_out_share: float = Field(default=0.06, gt=0, lt=0.5)
    """Share of documents kept for evaluation; a document is wholly in one split."""


def split_of(document: Document, config: Config) -> str:
    """Where a document belongs: its content decides, so adding documents never moves another."""
    drawn = hashlib.sha256(b"split:" + document.sha256.encode()).digest()
    return "held_out" if int.from_bytes(drawn[:8]) < config.held_out_share * 2**64 else "train"


def split_documents(documents: Iterable[Document], config: Config) -> dict[str, list[Document]]:
    """Documents by split; a split without any is an error, since nothing could be trained or measured."""
    splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
    for document in documents:
        splits[split_of(document, config)].append(document)
    for split, found in splits.items():
        if not found:
            total = sum(map(len, splits.values()))
            raise DataError(
                f"none of {total} documents fell into split '{split}' with held_out_share="
                f"{config.held_out_share}; add documents or change data.shards.held_out_share"
            )
    return splits


def write_shard(path: Path, split: str, samples: list[Sample]) -> Shard:
    """Write one tar; names, times and owners are fixed, so equal samples are equal bytes."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for sample in samples:
            for name, content in _members(sample):
                tar.addfile(_header(name, len(content)), io.BytesIO(content))
    return Shard(
        name=path.name,
        split=split,
        sha256=storage.sha256_of_file(path),
        bytes=path.stat().st_size,
        samples=len(samples),
        tokens=sum(len(sample.tokens) for sample in samples),
    )


def _members(sample: Sample) -> Iterator[tuple[str, bytes]]:
    import numpy as np

    document, array = sample.document, io.BytesIO()
    np.save(array, sample.tokens, allow_pickle=False)
    facts = {"path": document.path, "sha256": document.sha256, "split": sample.split}
    yield f"{document.key}.json", json.dumps(facts, sort_keys=True).encode()
    yield f"{document.key}.npy", array.getvalue()
    yield f"{document.key}.txt", document.text.encode()


def _header(name: str, size: int) -> tarfile.TarInfo:
    """TarInfo's own defaults are the fixed ones: mode 0644, owner 0, time 0."""
    header = tarfile.TarInfo(name)
    header.size = size
    return header
