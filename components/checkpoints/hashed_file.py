"""A file that is hashed while it is written, and read from the device again before its digest is believed.

Hashing what lies on disk afterwards would vouch for a write that went wrong. SHA-256 runs beside the write,
in a thread of its own; the comparison after the flush uses XXH3, which costs next to nothing.
"""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from components.contents import Entry
from components.errors import CheckpointCorrupt

SMALL = 1 << 16
"""Bytes that are hashed sooner than another thread is told of them."""
AT_ONCE = 1 << 24


class HashedFile:
    """For whoever writes to a file object: `with HashedFile(path) as file: torch.save(state, file)`."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes = path, 0
        self.seconds_hashing = 0.0
        """That the writer spends on nothing else: most of it passes beside, while the disk is waited for."""
        self._sha256, self._xxh3 = hashlib.sha256(), xxhash.xxh3_128()
        self._file = path.open("xb", buffering=0)
        self._refused: OSError | None = None
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="sha256")

    def __enter__(self) -> HashedFile:
        return self

    def write(self, content: Any) -> int:
        """Write all of it; on return the content may change."""
        view = memoryview(content).cast("B")
        if len(view) < SMALL:
            self._write(view)
            started = time.perf_counter()
            self._hash(view)
        else:
            hashed = self._beside.submit(self._hash, view)
            try:
                self._write(view)
            finally:
                started = time.perf_counter()
                hashed.result()
        self.seconds_hashing += time.perf_counter() - started
        self.bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beside.shutdown()
        with self._file:
            if self._refused:  # torch's writer, between us and the caller, says only that it failed
                raise self._refused from None
            if kind is None:
                os.fsync(self._file.fileno())

    @property
    def entry(self) -> Entry:
        """What the manifest says of it."""
        return Entry(sha256=self._sha256.hexdigest(), bytes=self.bytes)

    def read_back(self) -> None:
        """CheckpointCorrupt when the device gives other bytes than were written."""
        found = xxhash.xxh3_128()
        for piece in pieces(self.path):
            found.update(piece)
        if found.digest() != self._xxh3.digest():
            raise CheckpointCorrupt(
                f"{self.path.name} reads back otherwise than it was written, {self.bytes} bytes: the device "
                "is at fault, or its memory; look at its log before saving there again"
            )

    def _hash(self, view: memoryview) -> None:
        self._sha256.update(view)
        self._xxh3.update(view)

    def _write(self, view: memoryview) -> None:
        try:
            while view:
                view = view[self._file.write(view) or 0 :]
        except OSError as error:
            self._refused = error
            raise


def pieces(path: Path) -> Any:
    """A flushed file from its device, as far as the system lets go of what it holds in memory."""
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := file.read(AT_ONCE):
            yield piece
