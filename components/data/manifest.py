"""The list of what a data set consists of: every file with its size and SHA-256, written after all of them.

Pattern: Shard Manifest
Problem: a tar cut at a member boundary, or with one flipped header bit, loses samples without an error.
Answer: readers start from a manifest, published last, and use no byte whose digest it does not hold.
Trade-off: a data set never changes in place, and opening it reads every shard once.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from components import storage
from components.errors import DataError, ShardIntegrityError

NAME = "manifest.json"
SPLITS = ("train", "held_out")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shard(_Part):
    """One tar."""

    name: str
    split: str
    sha256: str
    bytes: int
    samples: int
    tokens: int


class Source(_Part):
    """What was read, before anything was set aside."""

    kind: str
    digest: str
    """Of the SHA-256 of every document, in the order read."""
    documents: int
    characters: int


class Split(_Part):
    """Size of one half of the data set."""

    documents: int
    tokens: int


class Manifest(_Part):
    """A data set: `train-*.tar`, `held_out-*.tar` and the tokenizer that made their ids."""

    schema_version: Literal[1] = 1
    shards: list[Shard]
    source: Source
    tokenizer_sha256: str
    """Of `tokenizer.json`."""
    tokenizer_config_sha256: str
    """Of `tokenizer_config.json`."""
    vocab_size: int
    splits: dict[str, Split]
    unigram_cross_entropy: float
    """Nats per held-out token of add-one smoothed counts of the train split: what any model must beat."""
    set_aside: dict[str, int]
    """Documents left out, by reason."""

    def shards_of(self, split: str) -> list[Shard]:
        """The shards of one split, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def digests(self) -> dict[str, str]:
        """File name to SHA-256, of all that lies beside the manifest."""
        tokenizer = {
            "tokenizer.json": self.tokenizer_sha256,
            "tokenizer_config.json": self.tokenizer_config_sha256,
        }
        return {shard.name: shard.sha256 for shard in self.shards} | tokenizer


def read(url: str) -> Manifest:
    """The manifest of a data set; without one there is no data set."""
    content = _content(url)
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ShardIntegrityError(
            f"{NAME} of {url} does not hold: {where}: {first['msg']}; {REBUILD}"
        ) from None


def digest(url: str) -> str:
    """Hex SHA-256 of the manifest's bytes: it stands for the whole data set."""
    return storage.sha256_of_bytes(_content(url))


def write(url: str, manifest: Manifest) -> None:
    """Publish a manifest; call it after everything that it lists."""
    storage.write_json(storage.join(url, NAME), manifest.model_dump(mode="json"))


REBUILD = "remove the folder and run `stanchion run shard_dataset` to build it again"


def _content(url: str) -> bytes:
    try:
        return storage.read_bytes(storage.join(url, NAME))
    except FileNotFoundError:
        raise DataError(f"no {NAME} in {url}: it is not a finished data set; {REBUILD}") from None
