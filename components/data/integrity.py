"""Every byte of a data set against its manifest: what `check` does before training and after a suspicion.

The whole of each tar is hashed, its members are parsed as strictly as they were written, and the index that
follows from them must be the sidecar that lies there. Nothing is unpickled, extracted or handed to a shell.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

from components import storage
from components.contents import Entry
from components.data import index, tar
from components.data import manifest as manifests
from components.data.manifest import REBUILD, Manifest, Shard, mend
from components.data.tar import Member
from components.errors import ShardIntegrityError

Progress = Callable[[int, int], None]


def check_dataset(url: str, *, digest: str | None = None, on_progress: Progress | None = None) -> Manifest:
    """Read a whole data set against its manifest, and the manifest against a digest when one is given.

    Raises ShardIntegrityError on the first fault. `on_progress` is told the bytes done and those there are.
    """
    manifest, _ = manifests.read_with_digest(url, digest)
    for fault in _faults(url, manifest, on_progress):
        raise fault
    return manifest


def faults_of(
    url: str, *, digest: str | None = None, on_progress: Progress | None = None
) -> list[ShardIntegrityError]:
    """Every fault of a data set; its manifest must hold, or there is nothing to compare with."""
    return list(_faults(url, manifests.read_with_digest(url, digest)[0], on_progress))


def _faults(url: str, manifest: Manifest, on_progress: Progress | None) -> Iterator[ShardIntegrityError]:
    yield from _extra_names(url, manifest)
    entries = manifest.entries()
    total, done = sum(entry.bytes for entry in entries.values()), 0
    for shard in manifest.shards:
        yield from _of_shard(url, shard, manifest.vocab_size)
        done += shard.bytes + shard.index_bytes
        if on_progress:
            on_progress(done, total)
    for name, entry in manifest.files.items():
        try:
            _read(url, name, entry)
        except ShardIntegrityError as fault:
            yield fault
        done += entry.bytes
        if on_progress:
            on_progress(done, total)


def _extra_names(url: str, manifest: Manifest) -> Iterator[ShardIntegrityError]:
    """A stale listing may miss files, so only what is there and should not be is read from one."""
    listed = {*manifest.entries(), manifests.NAME}
    for name in storage.listing(url):
        if name not in listed:
            yield ShardIntegrityError(f"{name} in {url} but not in its manifest; remove it", shard=name)


def _of_shard(url: str, shard: Shard, vocab_size: int) -> Iterator[ShardIntegrityError]:
    """A digest vouches for the writer; parsing anew vouches that the writer and this reader agree."""
    remedy = mend(url)
    try:
        entry = Entry(sha256=shard.index_sha256, bytes=shard.index_bytes)
        sidecar = _read(url, shard.index_name, entry, remedy)
    except ShardIntegrityError as fault:
        yield fault
        sidecar = None
    try:
        content = _read(url, shard.name, Entry(sha256=shard.sha256, bytes=shard.bytes), remedy)
        members = tar.scan(io.BytesIO(content), shard.name)
        rows = index.of_members(_fitting(members, shard, vocab_size), shard.name)
        _check_counts(url, shard, rows)
    except ShardIntegrityError as fault:
        yield _located(url, shard, sidecar, fault)
        return
    if sidecar is not None and index.to_bytes(rows) != sidecar:
        yield ShardIntegrityError(
            f"{shard.index_name} of {url} is not the index of its tar; {REBUILD}", shard=shard.name
        )


def _fitting(members: Iterator[Member], shard: Shard, vocab_size: int) -> Iterator[Member]:
    """A document in a shard of another split or source than its own would be trained on, or tested with."""
    for member in members:
        if member.kind == "npy":
            largest = int(index.array_of(member.content, shard.name, member.key).max(initial=0))
            if largest >= vocab_size:
                raise ShardIntegrityError(
                    f"{shard.name}: {member.key}.npy holds id {largest}, the vocabulary has {vocab_size}",
                    shard=shard.name,
                    key=member.key,
                    offset=member.start,
                )
        if member.kind == "json":
            facts = _facts(member.content)
            found = {name: facts.get(name) for name in ("split", "source")}
            if found != {"split": shard.split, "source": shard.source}:
                raise ShardIntegrityError(
                    f"{shard.name} is of split '{shard.split}' and source '{shard.source}', its sample "
                    f"{member.key} says {found}; {REBUILD}",
                    shard=shard.name,
                    key=member.key,
                    offset=member.start,
                )
        yield member


def _facts(content: bytes) -> dict[str, Any]:
    """What a sample's `.json` says; nothing, when it is none."""
    try:
        facts = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _check_counts(url: str, shard: Shard, rows: index.Index) -> None:
    found = int(rows["tokens"].sum())
    if (len(rows), found) != (shard.samples, shard.tokens):
        raise ShardIntegrityError(
            f"{shard.name} of {url} holds {len(rows)} samples and {found} tokens, the manifest says "
            f"{shard.samples} and {shard.tokens}; {REBUILD}",
            shard=shard.name,
        )


def _located(
    url: str, shard: Shard, sidecar: bytes | None, fault: ShardIntegrityError
) -> ShardIntegrityError:
    """The same fault with the first sample it harms, when the index is whole and names it."""
    if sidecar is None or fault.key or not storage.exists(place := storage.join(url, shard.name)):
        return fault
    content = storage.read_bytes(place)
    try:
        rows = index.from_bytes(sidecar, shard.name)
    except ShardIntegrityError:
        return fault
    for row in rows:
        first, size = int(row["offset"]), int(row["size"])
        for kind in tar.MEMBERS:
            start, length = int(row[kind]["start"]), int(row[kind]["bytes"])
            key = bytes(row["key"]).decode()
            head = tar.header(f"{key}.{kind}".encode(), length)
            piece = content[start - tar.BLOCK : start + length]
            if piece[: tar.BLOCK] != head or index.checksum(piece[tar.BLOCK :]) != int(row[kind]["xxh3"]):
                at = start if piece[: tar.BLOCK] == head else start - tar.BLOCK
                return ShardIntegrityError(
                    f"{fault}; first harmed: {key}.{kind} at byte {at} (sample at {first}, {size} bytes)",
                    shard=shard.name,
                    key=key,
                    offset=at,
                )
    return fault


def _read(url: str, name: str, entry: Entry, remedy: str = REBUILD) -> bytes:
    """What is hashed is what is parsed: a file is read once, whole, and compared before anyone looks."""
    try:
        content = storage.read_bytes(storage.join(url, name))
    except FileNotFoundError:
        raise ShardIntegrityError(f"{name} is missing from {url}; {remedy}", shard=name) from None
    if (found := storage.sha256_of_bytes(content)) != entry.sha256 or len(content) != entry.bytes:
        raise ShardIntegrityError(
            f"{name} of {url}: its {len(content)} bytes have SHA-256 {found[:12]}, the manifest says "
            f"{entry.bytes} bytes with {entry.sha256[:12]}; {remedy}",
            shard=name,
        )
    return content
