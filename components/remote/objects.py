"""Reading and writing on any remote file system: each call repeats what may pass, and checks what it got.

No object is ever opened for writing: fsspec publishes what was written so far when the block around an open
file fails. A put is one request or a set of parts, so a reader sees the old object, the new one, or none.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from components.errors import Conflict, StorageError
from components.remote import s3
from components.remote.filesystems import filesystem, process, protocol_of, writable
from components.remote.options import options
from components.remote.retries import Short, answer_of, persist

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

READ_AHEAD_BYTES = 4 << 20
PART_BYTES = 8 << 20
DOWNLOADS_AT_ONCE = 4
S3 = ("s3", "s3a")

Answer = TypeVar("Answer")


def exists(url: str) -> bool:
    """Whether an object is there, or any below it; an error of the store is not a no."""
    try:
        _info(url)
    except FileNotFoundError:
        return False
    return True


def size(url: str) -> int:
    """Bytes of an object."""
    found = _info(url)
    if found["type"] != "file":
        raise IsADirectoryError(f"{url} is a folder")
    return int(found["size"])


def listing(url: str) -> list[str]:
    """Names directly under a folder, sorted; asked anew each time."""
    files, path = filesystem(url)

    def ask() -> list[dict[str, Any]]:
        files.invalidate_cache()
        return list(files.ls(path, detail=True))

    try:
        found = _persist(ask, "list", url)
    except FileNotFoundError:
        return []
    names = {item["name"].rstrip("/") for item in found} - {path.rstrip("/")}
    return sorted(name.rpartition("/")[2] for name in names)


def walk(url: str) -> list[str]:
    """Every object below a folder by its path in it, sorted; an object has itself, by the empty path."""
    files, path = filesystem(url)

    def ask() -> list[str]:
        files.invalidate_cache()
        return list(files.find(path))

    found = _persist(ask, "list", url)
    return sorted(name.removeprefix(path).lstrip("/") for name in found if not name.endswith("/"))


def read_bytes(url: str) -> bytes:
    """A whole object by one request, so that it is never put together from two of its versions."""
    files, path = filesystem(url)
    whole = {"max_concurrency": 1} if protocol_of(url) in S3 else {}

    def ask() -> bytes:
        content = bytes(files.cat_file(path, **whole))
        if (expected := files.info(path)["size"]) is not None and len(content) != expected:
            raise Short(f"{len(content)} bytes came, the object has {expected}")
        return content

    return _persist(ask, "read", url)


def read_range(url: str, start: int, length: int) -> bytes:
    """Exactly `length` bytes from `start`, by two requests when the first is late."""
    files, path = filesystem(url)

    def ask() -> bytes:
        content = _one_range(files, path, start, length)
        if len(content) != length:
            raise Short(f"{len(content)} bytes came, {length} were asked for")
        return content

    try:
        return _persist(lambda: _unless_beyond(ask, url, start, length), f"read {length} bytes of", url)
    except OSError as error:
        if answer_of(error)[0] == 416:
            raise _beyond(url, start, length, size(url)) from error
        raise


def open_read(url: str) -> io.BufferedReader:
    """An object as a seekable stream of bytes, each block of it read like any range."""
    return io.BufferedReader(_Stream(url), READ_AHEAD_BYTES)


def download(url: str, target: Path, expected: int | None = None) -> None:
    """Write an object into a local file by ranges, several at once; a failure leaves the file unfinished."""
    total = size(url) if expected is None else expected
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o644)

    def part(start: int) -> None:
        content = read_range(url, start, min(PART_BYTES, total - start))
        while content:
            written = os.pwrite(descriptor, content, start)
            content, start = content[written:], start + written

    try:
        os.ftruncate(descriptor, total)
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
            parts = [pool.submit(part, start) for start in range(0, total, PART_BYTES)]
            try:
                for one in parts:
                    one.result()
            finally:
                for one in parts:
                    one.cancel()
    finally:
        os.close(descriptor)


def write_bytes(url: str, content: bytes) -> None:
    """Publish an object, replacing what was there."""
    writable(url)
    files, path = filesystem(url)
    _persist(lambda: files.pipe_file(path, content), "write", url)


def create_bytes(url: str, content: bytes) -> None:
    """Publish an object that is not there yet; FileExistsError when it is."""
    writable(url)
    files, path = filesystem(url)
    if protocol_of(url) in S3:
        s3.create(files, path, content, url)
        return
    try:
        _persist(lambda: files.pipe_file(path, content, mode="create"), "create", url)
    except FileExistsError:
        raise FileExistsError(f"{url} is there already, and it is written once only") from None


def replace_bytes(url: str, content: bytes, expected: bytes) -> None:
    """Publish an object in place of one that still is what is expected; Conflict when it is another."""
    writable(url)
    files, path = filesystem(url)
    on_s3 = protocol_of(url) in S3
    version = s3.version(files, path, url) if on_s3 else None
    if not exists(url) or read_bytes(url) != expected:
        raise Conflict(f"{url} was changed by someone else meanwhile; read it again", url=url)
    if version is not None:
        s3.replace(files, path, content, url, version)
    else:
        write_bytes(url, content)


def put_file(source: Path, url: str) -> None:
    """Publish a local file as an object, and ask the store for its size afterwards."""
    writable(url)
    files, path = filesystem(url)
    if protocol_of(url) in S3:
        s3.upload(files, source, path, url)
    elif protocol_of(url) == "memory":
        files.pipe_file(path, source.read_bytes())
    else:
        _persist(lambda: files.put_file(str(source), path), "upload", url)
    if (arrived := size(url)) != (sent := source.stat().st_size):
        raise StorageError(f"{url} has {arrived} bytes after an upload of {sent}; upload it again", url=url)


def remove(url: str) -> None:
    """Delete an object, or all below a folder; what is not there is no error."""
    writable(url)
    files, path = filesystem(url)

    def ask() -> None:
        files.invalidate_cache()
        if files.exists(path):
            files.rm(path, recursive=True)

    try:
        _persist(ask, "remove", url)
    except FileNotFoundError:
        return  # someone else was faster


class _Stream(io.RawIOBase):
    def __init__(self, url: str) -> None:
        self._url, self._size, self._place = url, size(url), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = max(0, offset + (0, self._place, self._size)[whence])
        return self._place

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._place))
        if length:
            view[:length] = read_range(self._url, self._place, length)
            self._place += length
        return length


def _info(url: str) -> dict[str, Any]:
    files, path = filesystem(url)

    def ask() -> dict[str, Any]:
        files.invalidate_cache()
        return dict(files.info(path))

    return _persist(ask, "look at", url)


def _one_range(files: Any, path: str, start: int, length: int) -> bytes:
    if not length:
        return b""
    if not files.async_impl:
        return bytes(files.cat_file(path, start=start, end=start + length))
    import asyncio

    config = options()
    return process().hedger.read(
        lambda: asyncio.run_coroutine_threadsafe(
            files._cat_file(path, start=start, end=start + length), files.loop
        ),
        length,
        after=config.hedge_after_seconds,
        share=config.hedge_share,
        timeout=config.timeout_seconds,
    )


def _unless_beyond(ask: Callable[[], bytes], url: str, start: int, length: int) -> bytes:
    """A short answer may pass, unless the object ends there."""
    try:
        return ask()
    except Short as error:
        if (total := size(url)) < start + length:
            raise _beyond(url, start, length, total) from error
        raise


def _beyond(url: str, start: int, length: int, total: int) -> StorageError:
    return StorageError(
        f"bytes {start} to {start + length} of {url} were asked for, it has {total}; "
        f"it was cut, or the index beside it is of another file",
        url=url,
    )


def _persist(ask: Callable[[], Answer], doing: str, url: str) -> Answer:
    return persist(ask, doing, url, budget=process().budget, retries=options().retries)
