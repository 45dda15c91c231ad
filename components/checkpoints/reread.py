"""A stored checkpoint against its manifest, read where it lies: no copy is made, whatever the store.

Local files are read from the device, not from what the system remembers of them, and not remembered after.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator

from components import storage
from components.checkpoints import manifest, state
from components.contents import Entry
from components.errors import CheckpointCorrupt, StorageError

PIECE_BYTES = 4 << 20


class Pace:
    """Holds a reader to a rate, on average since it began; None reads as fast as it goes."""

    def __init__(self, megabytes_per_second: float | None = None) -> None:
        self.rate = megabytes_per_second and megabytes_per_second * 1e6
        self.bytes = 0
        self.started = time.monotonic()

    def __call__(self, count: int) -> None:
        """So many bytes were read."""
        self.bytes += count
        if self.rate:
            time.sleep(max(0.0, self.started + self.bytes / self.rate - time.monotonic()))


def faults(checkpoint: str, pace: Pace | None = None) -> list[str]:
    """What is not as it was committed, a line a file, its name first; StorageError when a store is down."""
    pace = pace or Pace()
    known = state.committed_digest(checkpoint)
    try:
        content, digest = manifest.read_at(checkpoint)
    except CheckpointCorrupt as error:
        return [str(error)]
    if digest != known:
        return [f"{manifest.NAME} has SHA-256 {digest[:12]}, {known[:12]} was committed"]
    files = sorted(content.files.items())
    compared = ((name, _fault(storage.join(checkpoint, name), entry, pace)) for name, entry in files)
    found = [f"{name} {fault}" for name, fault in compared if fault]
    beside = {*content.files, manifest.NAME, manifest.SIGNATURE}
    extra = [name for name in storage.walk(checkpoint) if name not in beside]
    return found + [f"{name} is not in {manifest.NAME}" for name in extra]


def _fault(url: str, entry: Entry, pace: Pace) -> str | None:
    try:
        if (size := storage.size(url)) != entry.bytes:
            return f"has {size} bytes, {manifest.NAME} says {entry.bytes}"
        found = hashlib.sha256()
        for piece in _pieces(url):
            found.update(piece)
            pace(len(piece))
    except (FileNotFoundError, IsADirectoryError):
        return "is missing"
    except StorageError:
        raise
    except OSError as error:
        if not storage.is_local(url):
            raise
        return f"cannot be read from its device: {error.strerror}"
    if found.hexdigest() != entry.sha256:
        return f"has SHA-256 {found.hexdigest()[:12]}, {manifest.NAME} says {entry.sha256[:12]}"
    return None


def _pieces(url: str) -> Iterator[bytes]:
    with storage.open_read(url) as file:
        local = storage.is_local(url) and hasattr(os, "posix_fadvise")
        if local:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := file.read(PIECE_BYTES):
            yield piece
        if local:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
