"""One shard at a time, in whichever process: a part of the plan becomes a tar, an index and a receipt.

The receipt is written last. It holds a digest of all that the shard was made from, so a run that was killed
goes on where it was, and never takes a shard of other documents or another tokenizer for its own.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from components import storage
from components.data import tokenizer
from components.data.document import Document
from components.data.encoder import Encoder
from components.data.manifest import Shard
from components.data.shards import Sample, write_shard
from components.data.writing.layout import Part
from components.data.writing.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
"""Counted up when equal documents shall give other bytes."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """A shard that is whole, and whether this run wrote it."""

    shard: Shard
    anew: bool


def write_part(plan: Plan, part: Part) -> Written:
    """Write one shard, unless its receipt says that it lies there already, made from the same."""
    documents = list(plan.documents.pick(part.numbers.tolist()))
    inputs = _digest(plan, part, documents)
    if shard := _finished(plan, part, inputs):
        return Written(shard, anew=False)
    tokens = _encoder(plan.files, plan.tokenizer_sha256)([one.text for one in documents])
    samples = [Sample(one, part.split, ids) for one, ids in zip(documents, tokens, strict=True)]
    aside = plan.partial / str(os.getpid())
    aside.mkdir(parents=True, exist_ok=True)
    shard = write_shard(aside / part.name, part.split, samples, part.source)
    for name in (shard.name, shard.index_name):
        os.replace(aside / name, plan.files / name)
    _note(plan, shard, tokens, inputs)
    return Written(shard, anew=True)


def read_receipt(plan: Plan, part: Part) -> Shard:
    """A finished shard."""
    return Shard.model_validate(storage.read_json(str(plan.receipt(part.name)))["shard"])


def _finished(plan: Plan, part: Part, inputs: str) -> Shard | None:
    """The shard that lies there, if it is whole and was made from the same."""
    try:
        found = storage.read_json(str(plan.receipt(part.name)))
        shard = Shard.model_validate(found["shard"])
        counted = int(np.load(plan.counts(part.name)).sum())
    except FileNotFoundError:
        return None
    except (ValueError, EOFError, KeyError):  # written without a flush, so a power cut may leave anything
        logger.warning("the receipt of %s is not readable: written anew", part.name)
        return None
    if found["inputs"] != inputs:
        logger.warning("%s of an earlier run was made from something else: written anew", part.name)
        plan.receipt(part.name).unlink()
        return None
    sizes = {shard.name: shard.bytes, shard.index_name: shard.index_bytes}
    if counted == shard.tokens and all(_size(plan.files / name) == size for name, size in sizes.items()):
        return shard
    logger.warning("%s of an earlier run is not as its receipt says: written anew", part.name)
    return None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _digest(plan: Plan, part: Part, documents: Sequence[Document]) -> str:
    """Of all that decides a shard's bytes."""
    from xxhash import xxh3_128

    made_from = [FORMAT, plan.tokenizer_sha256, part.split, part.source]
    found = xxh3_128(json.dumps(made_from).encode())
    for one in documents:
        found.update(
            f"{one.key}\0{one.sha256}\0{one.path}\0{one.source}\0{len(one.text)}\0{one.text}".encode(
                errors="replace"
            )
        )
    return found.hexdigest()


def _note(plan: Plan, shard: Shard, tokens: list[NDArray[Any]], inputs: str) -> None:
    """Counts, then the receipt. Neither is flushed: what a power cut leaves of them is not believed."""
    vocab_size = _encoder(plan.files, plan.tokenizer_sha256).vocab_size
    counts = io.BytesIO()
    np.save(counts, np.bincount(np.concatenate(tokens), minlength=vocab_size), allow_pickle=False)
    receipt = {"inputs": inputs, "shard": shard.model_dump(mode="json")}
    for place, content in (
        (plan.counts(shard.name), counts.getvalue()),
        (plan.receipt(shard.name), json.dumps(receipt).encode()),
    ):
        place.parent.mkdir(exist_ok=True)
        aside = place.with_suffix(f".{os.getpid()}")
        aside.write_bytes(content)
        os.replace(aside, place)


@lru_cache(maxsize=1)
def _encoder(folder: Path, sha256: str) -> Encoder:
    """Made once a process."""
    return Encoder(tokenizer.load(folder))
