"""Bytes of a shard that its manifest vouches for, and nothing else.

What is hashed is what is parsed: a shard is read once into memory, compared, and only then opened as a tar.
Members are text, JSON and plain arrays; nothing is unpickled, extracted or handed to a shell.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from components import storage
from components.data import manifest as manifests
from components.data.document import Document
from components.data.manifest import REBUILD, Manifest, Shard
from components.errors import ShardIntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sample:
    """One document of a shard and its token ids, which end with the end-of-text id."""

    document: Document
    split: str
    tokens: NDArray[Any]


def check_dataset(
    url: str,
    *,
    digest: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Read a whole data set against its manifest, and the manifest against a digest when one is given.

    Raises ShardIntegrityError with the file's name on a cut, a flipped bit, a missing or an extra file.
    `on_progress` is told the files done and the files there are.
    """
    if digest is not None and (found := manifests.digest(url)) != digest:
        raise ShardIntegrityError(
            f"{manifests.NAME} of {url} has digest {found[:12]}, expected {digest[:12]}; {REBUILD}"
        )
    manifest = manifests.read(url)
    _check_names(url, manifest)
    shards = {shard.name: shard for shard in manifest.shards}
    for done, (name, sha256) in enumerate(manifest.digests().items(), start=1):
        content = _verified(url, name, sha256)
        if name in shards:
            _check_counts(shards[name], content)
        if on_progress:
            on_progress(done, len(manifest.digests()))
    return manifest


def read_shard(url: str, shard: Shard) -> Iterator[Sample]:
    """The samples of a shard, after all its bytes have been compared with the manifest."""
    return _samples(_verified(url, shard.name, shard.sha256), shard.name)


def _verified(url: str, name: str, sha256: str) -> bytes:
    try:
        content = storage.read_bytes(storage.join(url, name))
    except FileNotFoundError:
        raise ShardIntegrityError(f"{name} is missing from {url}; {REBUILD}") from None
    found = storage.sha256_of_bytes(content)
    if found != sha256:
        raise ShardIntegrityError(
            f"{name} of {url}: its {len(content)} bytes have SHA-256 {found[:12]}, the manifest says "
            f"{sha256[:12]}; {REBUILD}"
        )
    return content


def _check_names(url: str, manifest: Manifest) -> None:
    there, listed = set(storage.listing(url)), {*manifest.digests(), manifests.NAME}
    if missing := sorted(listed - there):
        raise ShardIntegrityError(f"{', '.join(missing)} missing from {url}; {REBUILD}")
    if extra := sorted(there - listed):
        raise ShardIntegrityError(f"{', '.join(extra)} in {url} but not in its manifest; remove it")


def _check_counts(shard: Shard, content: bytes) -> None:
    """A digest vouches for the writer; the counts vouch that the writer and this reader agree."""
    samples = list(_samples(content, shard.name))
    tokens = sum(len(sample.tokens) for sample in samples)
    if (len(samples), tokens) != (shard.samples, shard.tokens):
        raise ShardIntegrityError(
            f"{shard.name} holds {len(samples)} samples and {tokens} tokens, the manifest says "
            f"{shard.samples} and {shard.tokens}; {REBUILD}"
        )


def _samples(content: bytes, shard: str) -> Iterator[Sample]:
    for key, members in _members(content):
        try:
            yield _sample(key, members)
        except (KeyError, ValueError) as error:
            raise ShardIntegrityError(f"{shard}: sample {key} cannot be read: {error}; {REBUILD}") from error


def _members(content: bytes) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Members that share a key and follow each other, as WebDataset groups them."""
    group: tuple[str, dict[str, bytes]] | None = None
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for member in tar:
            key, _, suffix = member.name.partition(".")
            file = tar.extractfile(member)
            if group is None or group[0] != key:
                if group is not None:
                    yield group
                group = (key, {})
            group[1][suffix] = file.read() if file else b""
    if group is not None:
        yield group


def _sample(key: str, members: dict[str, bytes]) -> Sample:
    import numpy as np

    facts = json.loads(members["json"])
    document = Document(key, members["txt"].decode(), facts["path"], facts["sha256"])
    tokens = np.load(io.BytesIO(members["npy"]), allow_pickle=False)
    return Sample(document, facts["split"], tokens)
