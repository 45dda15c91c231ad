"""The list of what a data set consists of: every file with its size and SHA-256, written after all of them.

Pattern: Shard Manifest
Problem: a tar cut at a member boundary, or with one flipped header bit, loses samples without an error.
Answer: readers start from a manifest, published last, and use no byte that its digests do not vouch for.
Trade-off: a data set never changes in place, and beside each tar lies an index of its samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from components import storage
from components.contents import Entry
from components.errors import DataError, ShardIntegrityError

NAME = "manifest.json"
SPLITS = ("train", "held_out")

Count = Annotated[int, Field(ge=0, lt=1 << 40)]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
"""Plain: nothing in a manifest reaches outside its folder."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shard(_Part):
    """One tar and its index."""

    name: str = Field(pattern=r"^[a-z_]{1,32}-\d{6,12}\.tar$")
    split: str
    source: str = ""
    """Which part of a mixture its documents are from; a shard holds one."""
    sha256: str
    bytes: Count
    samples: Count
    tokens: Count
    index_sha256: str
    index_bytes: Count

    @property
    def index_name(self) -> str:
        """The sidecar of this tar."""
        return self.name.removesuffix(".tar") + ".index.npy"


class Source(_Part):
    """What was read, before anything was set aside."""

    kind: str
    settings: dict[str, Any] = Field(default_factory=dict)
    """With which it was read: a damaged shard is built again from it."""
    digest: str
    """Of the SHA-256 of every document, in the order read."""
    documents: int
    characters: int


class Split(_Part):
    """Size of one half of the data set, or of one source's part of it."""

    documents: int
    tokens: int


class Manifest(_Part):
    """A data set: `train-*.tar`, `held_out-*.tar`, their indexes and the tokenizer that made their ids."""

    schema_version: Literal[2] = 2
    shards: list[Shard]
    files: dict[FileName, Entry]
    """What else lies there, by name: the tokenizer, what was set aside, what was expected of the source."""
    source: Source
    vocab_size: int
    splits: dict[str, Split]
    sources: dict[str, dict[str, Split]] = Field(default_factory=dict)
    """Size of each part of a mixture, by split and name."""
    unigram_cross_entropy: float
    """Nats per held-out token of add-one smoothed counts of the train split: what any model must beat."""
    set_aside: dict[str, int]
    """Documents left out, by reason."""

    @model_validator(mode="after")
    def _adds_up(self) -> Manifest:
        """A shard that is named twice or claimed by no split would be read twice, or never."""
        names = [name for shard in self.shards for name in (shard.name, shard.index_name)]
        if len({*names, *self.files, NAME}) != len(names) + len(self.files) + 1:
            raise ValueError("a file is listed twice")
        if self.splits != (found := _sizes(self.shards, lambda shard: shard.split)):
            raise ValueError(f"splits say {self.splits}, the shards add up to {found}")
        for split, sources in self.sources.items():
            if sources != _sizes(self.shards_of(split), lambda shard: shard.source):
                raise ValueError(f"sources of split '{split}' are not what the shards add up to")
        return self

    def shards_of(self, split: str, source: str | None = None) -> list[Shard]:
        """The shards of one split, and of one source when one is named, in order."""
        of_split = [shard for shard in self.shards if shard.split == split]
        return [shard for shard in of_split if source is None or shard.source == source]

    @property
    def tokenizer_sha256(self) -> str:
        """Of `tokenizer.json`."""
        return self.files["tokenizer.json"].sha256

    def entries(self) -> dict[str, Entry]:
        """Digest and size of all that lies beside the manifest, by file name."""
        tars = {shard.name: Entry(sha256=shard.sha256, bytes=shard.bytes) for shard in self.shards}
        indexes = {
            shard.index_name: Entry(sha256=shard.index_sha256, bytes=shard.index_bytes)
            for shard in self.shards
        }
        return tars | indexes | self.files


def _sizes(shards: list[Shard], part_of: Callable[[Shard], str]) -> dict[str, Split]:
    found: dict[str, list[Shard]] = {}
    for shard in shards:
        found.setdefault(part_of(shard), []).append(shard)
    return {
        part: Split(documents=sum(one.samples for one in of_it), tokens=sum(one.tokens for one in of_it))
        for part, of_it in found.items()
    }


def read(url: str) -> Manifest:
    """The manifest of a data set; without one there is no data set."""
    return parse(_content(url), url)


def parse(content: bytes, url: str) -> Manifest:
    """The manifest in some bytes."""
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ShardIntegrityError(
            f"{NAME} of {url} does not hold: {where}: {first['msg']}; {REBUILD}"
        ) from None


def read_with_digest(url: str, expected: str | None = None) -> tuple[Manifest, str]:
    """The manifest, and the hex SHA-256 of the very bytes it was parsed from, which may be expected."""
    content = _content(url)
    found = storage.sha256_of_bytes(content)
    if expected is not None and found != expected:
        raise ShardIntegrityError(
            f"{NAME} of {url} has digest {found[:12]}, expected {expected[:12]}; {REBUILD}"
        )
    return parse(content, url), found


def digest(url: str) -> str:
    """Hex SHA-256 of the manifest's bytes: it stands for the whole data set."""
    return storage.sha256_of_bytes(_content(url))


def to_bytes(manifest: Manifest) -> bytes:
    """The manifest's file; equal manifests are equal bytes."""
    return (json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()


REBUILD = "remove the folder and run `stanchion run shard_dataset` to build it again"


def mend(url: str) -> str:
    """What to do about a shard of which the manifest knows better."""
    return f"`stanchion rebuild {url}` builds it again"


def _content(url: str) -> bytes:
    try:
        return storage.read_bytes(storage.join(url, NAME))
    except FileNotFoundError:
        raise DataError(f"no {NAME} in {url}: it is not a finished data set; {REBUILD}") from None
