"""A published data set opened for reading: no byte is handed out that was not compared with what was written.

The manifest vouches for each index, an index for every member of its tar. A member is one read at a known
offset and one 64-bit checksum; nothing before it is parsed, so any sample costs the same. Files are read,
not mapped: a mapped file that is cut under its reader kills the process, a short read is a named error.
"""

from __future__ import annotations

import io
import json
import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components import storage
from components.data import cache, index, tar
from components.data import manifest as manifests
from components.data.document import Document
from components.data.index import Index, checksum
from components.data.manifest import REBUILD, Shard, mend
from components.data.recent import Recent
from components.data.shards import Sample
from components.errors import ShardIntegrityError

Tokens = NDArray[np.unsignedinteger]
CACHE_BYTES = 256 << 20
Drop = Callable[[ShardIntegrityError, Shard, int], None]
"""Told of a sample that cannot be read, its shard and row; raises when there are too many."""


class Reader:
    """Samples of a data set by shard and row. Safe to fork: it only ever reads at explicit offsets."""

    def __init__(
        self,
        url: str,
        *,
        digest: str | None = None,
        verify: bool = True,
        cache_bytes: int = CACHE_BYTES,
        on_fault: Callable[[ShardIntegrityError], None] | None = None,
    ) -> None:
        self._files: OrderedDict[str, int] = OrderedDict()
        self._anew: set[str] = set()
        self._in_place: set[str] = set()
        self.url, self.verify = url, verify
        self.manifest, self.digest = manifests.read_with_digest(url, digest)
        self._tokens: Recent[Tokens] = Recent(cache_bytes)
        self._indexes: Recent[Index] = Recent(cache_bytes)
        self.on_fault = on_fault
        """Told of what could be mended in reading; without it, that too is an error, and a shard whose length
        is wrong is refused before its first sample rather than at the first that is missing."""

    def index(self, shard: Shard) -> Index:
        """The rows of a shard's index, compared with the manifest when they are loaded."""
        if (rows := self._indexes.get(shard.name)) is None:
            rows = self._load_index(shard)
            self._indexes.put(shard.name, rows, rows.nbytes)
        return rows

    def content(self, shard: Shard, row: int, kind: str) -> bytes:
        """One member of one sample."""
        place = self.index(shard)[row][kind]
        start, size, expected = int(place["start"]), int(place["bytes"]), int(place["xxh3"])
        content = self._read(shard, start, size)
        if self.verify and (len(content) != size or checksum(content) != expected):
            if self._copied_anew(shard):
                return self.content(shard, row, kind)
            raise self.fault(shard, row, kind, content)
        return content

    def tokens(self, shard: Shard, row: int) -> Tokens:
        """Token ids of one sample."""
        if (known := self._tokens.get((shard.name, row))) is not None:
            return known
        tokens = index.array_of(self.content(shard, row, "npy"), shard.name, self.key(shard, row))
        self._refuse_unlikely(tokens, shard, row)
        return self._tokens.put((shard.name, row), tokens, tokens.nbytes)

    def sample(self, shard: Shard, row: int) -> Sample:
        """One sample whole."""
        key, facts, text = self.key(shard, row), *(self.content(shard, row, kind) for kind in ("json", "txt"))
        try:
            known = json.loads(facts)
            document = Document(key, text.decode(), known["path"], known["sha256"], source=known["source"])
            return Sample(document, known["split"], self.tokens(shard, row))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ShardIntegrityError(
                f"{shard.name} of {self.url}: sample {key} is none that a shard writer made: {error!r}",
                shard=shard.name,
                key=key,
            ) from None

    def key(self, shard: Shard, row: int) -> str:
        """The name of a sample."""
        return bytes(self.index(shard)["key"][row]).decode()

    def descriptor(self, shard: Shard) -> int:
        """An open file of a shard's tar; the least recently used are closed when there are many."""
        if (known := self._files.get(shard.name)) is not None:
            self._files.move_to_end(shard.name)
            return known
        descriptor = self._open(shard)
        size = os.fstat(descriptor).st_size
        if size != shard.bytes and self.on_fault is None:
            os.close(descriptor)
            raise ShardIntegrityError(
                f"{shard.name} of {self.url} has {size} bytes, the manifest says {shard.bytes}; "
                f"{mend(self.url)}",
                shard=shard.name,
                offset=min(size, shard.bytes),
            )
        self._files[shard.name] = descriptor
        if len(self._files) > most_open_files():
            os.close(self._files.popitem(last=False)[1])
        return descriptor

    def fault(self, shard: Shard, row: int, kind: str, content: bytes) -> ShardIntegrityError:
        """What to say of a member that is not what was written."""
        place, key = self.index(shard)[row][kind], self.key(shard, row)
        short = int(place["bytes"]) - len(content)
        found = f"ends {short} bytes early" if short else f"has checksum {checksum(content):016x}"
        return ShardIntegrityError(
            f"{shard.name} of {self.url}: {key}.{kind} at byte {place['start']} {found}, its index says "
            f"{int(place['xxh3']):016x}; `stanchion check {self.url}` lists every fault",
            shard=shard.name,
            key=key,
            offset=int(place["start"]),
        )

    def close(self) -> None:
        """Close every file."""
        while self._files:
            os.close(self._files.popitem()[1])

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Another process opens files of its own."""
        empty = {"_files": OrderedDict(), "_tokens": Recent(self._tokens.limit)}
        return {**self.__dict__, **empty, "_indexes": Recent(self._indexes.limit)}

    def _load_index(self, shard: Shard) -> Index:
        try:
            content = storage.read_bytes(storage.join(self.url, shard.index_name))
        except FileNotFoundError:
            content = b""
        if storage.sha256_of_bytes(content) == shard.index_sha256:
            return self._fitting(shard, index.from_bytes(content, shard.name))
        fault = ShardIntegrityError(
            f"{shard.index_name} of {self.url} is not what the manifest vouches for; {mend(self.url)}",
            shard=shard.name,
        )
        if self.on_fault is None:
            raise fault
        rows = self._index_from_tar(shard)
        self.on_fault(fault)
        return rows

    def _index_from_tar(self, shard: Shard) -> Index:
        """A tar whose own digest holds can say what its index was."""
        with open(self._open(shard), "rb") as file:
            content = file.read()
        if storage.sha256_of_bytes(content) != shard.sha256:
            raise ShardIntegrityError(
                f"neither {shard.name} of {self.url} nor its index is what was written; {mend(self.url)}",
                shard=shard.name,
            )
        return self._fitting(shard, index.of_members(tar.scan(io.BytesIO(content), shard.name), shard.name))

    def _fitting(self, shard: Shard, rows: Index) -> Index:
        """A digest says who wrote an index, not that it is true: it may point nowhere but into its tar."""
        ends = [rows[kind]["start"] + rows[kind]["bytes"] for kind in tar.MEMBERS]
        inside = all(
            (end <= shard.bytes).all() and (rows[kind]["start"] <= shard.bytes).all()
            for end, kind in zip(ends, tar.MEMBERS, strict=True)
        )
        if not inside or (len(rows), int(rows["tokens"].sum())) != (shard.samples, shard.tokens):
            raise ShardIntegrityError(
                f"{shard.index_name} of {self.url} does not fit its tar and the manifest; {REBUILD}",
                shard=shard.name,
            )
        return rows

    def _refuse_unlikely(self, tokens: Tokens, shard: Shard, row: int) -> None:
        expected, largest = int(self.index(shard)["tokens"][row]), int(tokens.max(initial=0))
        if len(tokens) != expected or largest >= self.manifest.vocab_size:
            key = self.key(shard, row)
            raise ShardIntegrityError(
                f"{shard.name} of {self.url}: {key}.npy holds {len(tokens)} ids up to {largest}; its index "
                f"says {expected}, the vocabulary has {self.manifest.vocab_size}",
                shard=shard.name,
                key=key,
            )

    def _copied_anew(self, shard: Shard) -> bool:
        """Once for each shard: a damaged copy of a remote one says nothing about the shard itself."""
        if storage.is_local(self.url) or shard.name in self._anew | self._in_place:
            return False
        self._anew.add(shard.name)
        cache.drop(shard.sha256, descriptor := self._files.pop(shard.name))
        os.close(descriptor)
        return True

    def _read(self, shard: Shard, start: int, size: int) -> bytes:
        """From a local file; where damage is skipped, what is left of a damaged one where it lies."""
        if shard.name not in self._in_place:
            try:
                return os.pread(self.descriptor(shard), size, start)
            except ShardIntegrityError:
                if self.on_fault is None or storage.is_local(self.url):
                    raise
                self._in_place.add(shard.name)
        try:
            return storage.read_range(storage.join(self.url, shard.name), start, size)
        except OSError:  # it is gone, or shorter than this
            return b""

    def _open(self, shard: Shard) -> int:
        try:
            path = cache.fetch(storage.join(self.url, shard.name), shard.sha256, shard.bytes)
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ShardIntegrityError(
                f"{shard.name} is missing from {self.url}; {mend(self.url)}", shard=shard.name
            ) from None


@lru_cache(maxsize=1)
def most_open_files() -> int:
    """Half of what the system allows this process."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
