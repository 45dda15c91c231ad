"""Reading and writing on this machine's disks: a file is written aside, flushed to the device, then named."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from components.errors import Conflict, StorageError

LOCK = ".lock"
"""In a folder: held by whoever replaces a file there on the ground of what it said."""


def publish(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Give a file its content at once, replacing what was there."""
    with _aside(target, write) as aside:
        aside.replace(target)


def create(target: Path, content: bytes) -> None:
    """Give a file its content, unless there is one: then FileExistsError, for all writers but one."""
    with _aside(target, lambda file: file.write(content)) as aside:
        try:
            os.link(aside, target)
        except FileExistsError:
            raise FileExistsError(f"{target} is there already, and it is written once only") from None
        finally:
            aside.unlink()


def replace(target: Path, content: bytes, expected: bytes) -> None:
    """Give a file other content, if it still has what is expected: then Conflict, for all writers but one."""
    with (target.parent / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file() or target.read_bytes() != expected:
            raise Conflict(f"{target} was changed by someone else meanwhile; read it again", url=str(target))
        publish(target, lambda file: file.write(content))


def copy(source: Path, target: Path) -> None:
    """Publish a copy of a file under another name."""

    def write(file: BinaryIO) -> None:
        with source.open("rb") as original:
            shutil.copyfileobj(original, file, 1 << 20)

    publish(target, write)


def move_folder(source: Path, target: Path) -> None:
    """Flush every file of a folder, then give it its final name, which must be free."""
    if target.exists():
        raise FileExistsError(f"{target} is already published; published folders never change")
    sync_tree(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.stat().st_dev == target.parent.stat().st_dev:
        source.rename(target)
    else:
        aside = _name_aside(target)
        shutil.copytree(source, aside)
        sync_tree(aside)
        aside.rename(target)
        shutil.rmtree(source)
    _sync_folder(target.parent)


def read_range(path: Path, start: int, length: int) -> bytes:
    """Exactly `length` bytes from `start`."""
    with path.open("rb") as file:
        content = os.pread(file.fileno(), length, start)
        while len(content) < length and (more := os.pread(file.fileno(), length, start + len(content))):
            content += more[: length - len(content)]
        if len(content) == length:
            return content
        total = os.fstat(file.fileno()).st_size
    raise StorageError(
        f"bytes {start} to {start + length} of {path} were asked for, it has {total}; "
        f"it was cut, or the index beside it is of another file",
        url=str(path),
    )


def remove(path: Path) -> None:
    """Delete a file or a whole folder; what is not there is no error."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def sync_tree(folder: Path) -> None:
    """Flush every file below a folder, and the folders that name them, to the device."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        _sync_folder(path)


@contextlib.contextmanager
def _aside(target: Path, write: Callable[[BinaryIO], object]) -> Iterator[Path]:
    """A flushed file beside the target, gone when the block fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = _name_aside(target)
    try:
        with aside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _name_aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
