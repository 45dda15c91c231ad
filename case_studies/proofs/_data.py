"""What the proofs read: small data sets of real shards, made from a seed, with shards as uneven as asked.

Written by the writer of every other data set; only the documents are drawn instead of collected, so that
shards of one, five and nine documents, and documents of a single token, turn up.
"""

from __future__ import annotations

import io
import json
import random
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components import contents
from components.data import manifest as manifests
from components.data import tokenizer as tokenizers
from components.data.document import Document, document_of
from components.data.encoder import Encoder
from components.data.manifest import Manifest, Shard, Source, Split
from components.data.shards import Sample, write_shard
from components.data.tokenizer import END_OF_TEXT_ID

STDLIB = Path(sysconfig.get_path("stdlib"))
REAL = ("json", "email", "http")
VOCABULARY = 251
WORDS = ("order", "shard", "token", "batch", "epoch", "rank", "step", "seed", "place", "line")


@dataclass(frozen=True)
class Part:
    """Documents of each shard of one split and source."""

    split: str
    documents: Sequence[int]
    source: str = ""


UNEVEN = (Part("train", (5, 1, 9)), Part("held_out", (2,)))
MIXED = (
    Part("train", (5, 1, 9), "code"),
    Part("train", (1, 7), "prose"),
    Part("train", (3,), "talk"),
    Part("held_out", (2,), "code"),
)
EVEN = (Part("train", (8,) * 8), Part("held_out", (4,)))


def make(folder: Path, parts: Sequence[Part], *, seed: int = 0, longest: int = 300) -> Path:
    """Write a data set; documents have 1 to `longest` tokens, the last of them the end of text."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    shards: list[Shard] = []
    for part in parts:
        for size in part.documents:
            number = sum(shard.split == part.split for shard in shards)
            samples = [_sample(draw, part, longest) for _ in range(size)]
            path = folder / f"{part.split}-{number:06d}.tar"
            shards.append(write_shard(path, part.split, samples, part.source))
    (folder / "tokenizer.json").write_text(json.dumps({"words": WORDS}) + "\n")
    write_manifest(folder, shards)
    return folder


def make_real(folder: Path) -> Path:
    """A data set of thirty-odd modules of the standard library, with a tokenizer learnt from them."""
    found = [path for name in REAL for path in sorted((STDLIB / name).glob("*.py"))]
    documents = [document_of(path.read_bytes(), path.name) for path in found if path.stat().st_size > 64]
    return _write_real(
        folder, documents, (("train", 0, 8), ("train", 8, 9), ("train", 9, 26), ("held_out", 26, None))
    )


def make_real_in_pieces(folder: Path, *, characters: int = 240) -> Path:
    """The same modules, in so many small documents that each step of a short job reads some anew."""
    found = [path for name in REAL for path in sorted((STDLIB / name).glob("*.py"))]
    texts = [(path.name, path.read_text()) for path in found]
    documents = [
        document_of(text[start : start + characters].encode(), f"{name}:{start}")
        for name, text in texts
        for start in range(0, len(text), characters)
    ]
    return _write_real(
        folder, documents, (("train", 0, 1000), ("train", 1000, 2000), ("held_out", 2000, 2040))
    )


def _write_real(
    folder: Path, documents: Sequence[Document], parts: Sequence[tuple[str, int, int | None]]
) -> Path:
    """Shards of the named split, each of the documents from one number to another."""
    folder.mkdir(parents=True)
    learnt = tokenizers.train([one.text for one in documents], tokenizers.Config(vocab_size=320))
    ids = Encoder(learnt)([one.text for one in documents])
    shards: list[Shard] = []
    for split, first, last in parts:
        samples = [
            Sample(one, split, tokens)
            for one, tokens in zip(documents[first:last], ids[first:last], strict=True)
        ]
        number = sum(shard.split == split for shard in shards)
        shards.append(write_shard(folder / f"{split}-{number:06d}.tar", split, samples))
    tokenizers.save(learnt, folder)
    write_manifest(folder, shards, vocab_size=320)
    return folder


def write_manifest(folder: Path, shards: list[Shard], vocab_size: int = VOCABULARY) -> Manifest:
    """List the shards of a folder, and the files that are none."""
    splits = list(dict.fromkeys(shard.split for shard in shards))
    manifest = Manifest(
        shards=shards,
        files={path.name: contents.entry(path) for path in sorted(folder.glob("tokenizer*"))},
        source=Source(kind="drawn", digest="0" * 64, documents=_size(shards).documents, characters=1),
        vocab_size=vocab_size,
        splits={split: _size([one for one in shards if one.split == split]) for split in splits},
        unigram_cross_entropy=5.0,
        set_aside={"duplicate": 3},
    )
    (folder / manifests.NAME).write_bytes(manifests.to_bytes(manifest))
    return manifest


def _size(shards: list[Shard]) -> Split:
    return Split(documents=sum(one.samples for one in shards), tokens=sum(one.tokens for one in shards))


def _sample(draw: random.Random, part: Part, longest: int) -> Sample:
    length = draw.choice((1, 2, 17, draw.randint(1, longest), draw.randint(1, longest)))
    text = " ".join(draw.choice(WORDS) for _ in range(length)) + f" {draw.getrandbits(64):x}"
    document = document_of(text.encode(), f"{draw.getrandbits(32):x}.txt")
    ids = [draw.randrange(1, VOCABULARY) for _ in range(length - 1)] + [END_OF_TEXT_ID]
    return Sample(replace(document, source=part.source), part.split, np.array(ids, dtype="<u2"))


@lru_cache(maxsize=64)
def tokens_in(tar: Path) -> list[NDArray[Any]]:
    """Token ids of every sample, read with nothing of ours: Python's tarfile and numpy."""
    with tarfile.open(tar) as archive:
        members = [member for member in archive.getmembers() if member.name.endswith(".npy")]
        return [np.load(io.BytesIO(_content(archive, member)), allow_pickle=False) for member in members]


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, "a regular file"
    return file.read()


def files_of(folder: Path) -> Iterator[Path]:
    """Every file of a data set, sorted."""
    yield from sorted(path for path in folder.iterdir() if path.is_file())
