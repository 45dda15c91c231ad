"""Copies of remote shards on the local disk, named by what is in them.

Pattern: Content-Addressed Cache
Problem: caches keyed by file name hand out another data set's shard, a cut download, or last week's copy.
Answer: a copy is named by its SHA-256 and gets that name only when its bytes have it; processes that want the
same one wait for a single download; the copies used longest ago make room, before the download starts.
Trade-off: every byte that arrives is hashed once. A hit is checked by its size alone; who reads a shard
checks every sample, and hands a damaged copy to `drop`.

Layout: `<cache>/<first two digits>/<sha256>`, `.partial` while it arrives, and `<cache>/locks/`. A lock is
the kernel's, so a killed process holds none. Evicting unlinks: who has the file open reads on to its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from components import storage
from components.errors import ConfigError, ShardIntegrityError
from components.remote import objects

PARTIAL = ".partial"
OPEN_ATTEMPTS = 3

logger = logging.getLogger(__name__)


def fetch(url: str, sha256: str, size: int) -> Path:
    """A local file with the content of `url`: itself when local, unchecked; else a copy that has the digest.

    The copy may be evicted when others need the room; open it at once, or through `opened`.
    """
    if storage.is_local(url):
        return storage.local_path(url)
    path = _place(sha256)
    if _use(path, size):
        return path
    with _lock(sha256):
        if not _use(path, size):
            _download(url, path, sha256, size)
    return path


@contextlib.contextmanager
def opened(url: str, sha256: str, size: int) -> Iterator[BinaryIO]:
    """The same, open for reading: what is open stays readable whatever is evicted meanwhile."""
    for attempt in range(OPEN_ATTEMPTS):
        try:
            file = fetch(url, sha256, size).open("rb")
            break
        except FileNotFoundError:  # evicted between the two calls
            if attempt == OPEN_ATTEMPTS - 1 or storage.is_local(url):
                raise
    with file:
        yield file


def drop(sha256: str, descriptor: int | None = None) -> None:
    """Forget a copy that turned out to be damaged; the next `fetch` downloads it anew.

    Who read it through an open file gives its descriptor: a copy that has taken its place since then stays.
    """
    path = _place(sha256)
    with _lock(sha256), contextlib.suppress(FileNotFoundError):
        if descriptor is None or os.path.samestat(path.stat(), os.fstat(descriptor)):
            path.unlink()
            logger.warning("cache: dropped %s, which was damaged after it had arrived", path.name[:12])


def used_bytes() -> int:
    """Size of all copies, finished and arriving."""
    return sum(entry.size for entry in _entries(storage.options().cache_folder))


@dataclass(frozen=True, order=True)
class _Entry:
    used: float
    path: Path
    size: int


def _download(url: str, path: Path, sha256: str, size: int) -> None:
    """Download aside, hash, then name; the caller holds the lock of this digest."""
    aside = path.with_name(path.name + PARTIAL)
    try:
        _reserve(aside, size)
        objects.download(url, aside, size)
        if (found := storage.sha256_of_file(aside)) != sha256:
            raise ShardIntegrityError(
                f"{url} holds other bytes than its manifest says: SHA-256 {found}, should be {sha256}; "
                f"nothing was kept, build the data set again or restore the file",
                shard=url.rpartition("/")[2],
            )
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _reserve(aside: Path, size: int) -> None:
    """Make room for a file and take it, so that downloads side by side never exceed the limit together."""
    config = storage.options()
    if size > config.cache_bytes:
        raise ConfigError(
            f"a shard of {size} bytes does not fit into the cache of {config.cache_bytes} at "
            f"{config.cache_folder}; raise storage.cache_bytes"
        )
    aside.parent.mkdir(parents=True, exist_ok=True)
    with _lock("room"):
        aside.unlink(missing_ok=True)
        _evict(config.cache_folder, config.cache_bytes - size)
        with aside.open("wb") as file:
            file.truncate(size)


def _evict(folder: Path, limit: int) -> None:
    """Unlink copies, those used longest ago first, until the rest fits; what is arriving stays."""
    entries = sorted(_entries(folder))
    total = sum(entry.size for entry in entries)
    for entry in entries:
        if total <= limit:
            return
        if entry.path.name.endswith(PARTIAL):
            with contextlib.suppress(BlockingIOError), _lock(entry.path.name, wait=False):
                entry.path.unlink(missing_ok=True)  # nobody is writing it: its process was killed
                total -= entry.size
            continue
        entry.path.unlink(missing_ok=True)
        total -= entry.size
        logger.info("cache: evicted %s, %d bytes", entry.path.name[:12], entry.size)
    if total > limit:
        raise ConfigError(
            f"the cache at {folder} is full of shards that are being downloaded; raise storage.cache_bytes "
            f"above the size of one shard for each process that reads"
        )


def _entries(folder: Path) -> Iterator[_Entry]:
    for path in folder.glob("[0-9a-f][0-9a-f]/*"):
        with contextlib.suppress(FileNotFoundError):  # evicted by another process
            found = path.stat()
            yield _Entry(found.st_mtime, path, found.st_size)


def _use(path: Path, size: int) -> bool:
    """Whether a whole copy is there; if so, note that it was used now."""
    try:
        if path.stat().st_size != size:
            path.unlink(missing_ok=True)
            return False
        os.utime(path)  # by hand: many file systems are mounted without access times
    except FileNotFoundError:
        return False
    return True


def _place(sha256: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ConfigError(f"{sha256!r} is not a SHA-256 in hex; take it from the manifest")
    return storage.options().cache_folder / sha256[:2] / sha256


@contextlib.contextmanager
def _lock(name: str, *, wait: bool = True) -> Iterator[None]:
    """One holder of a name among all processes and threads; digests share locks by three first digits."""
    path = storage.options().cache_folder / "locks" / (name if name == "room" else name[:3])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
