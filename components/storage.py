"""One way to read, write, list and atomically publish, on a local folder or any fsspec URL.

Pattern: Atomic Publish
Problem: a crash in the middle of a write leaves half a file under its final name, and readers trust names.
Answer: write aside, flush to the device, then rename; a reader sees the old state or the new one, never half.
Trade-off: one more copy of what is being written, and a leftover to sweep after a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import Field

from components.errors import ConfigError
from components.plugins import Config as Settings

CHUNK_BYTES = 1 << 20


class Config(Settings):
    """Where run folders live."""

    root: str = Field(default="runs", min_length=1)
    """Local folder or any fsspec URL (`s3://bucket/runs`) under which each run gets a folder."""

    scratch: str | None = None
    """Local folder for what is still being written; default: beside the run when the root is local."""


def is_local(url: str) -> bool:
    """Whether a URL names a folder of this machine."""
    return "://" not in url or url.startswith("file://")


def local_path(url: str) -> Path:
    """The path behind a local URL."""
    if not is_local(url):
        raise ConfigError(f"{url} is not a local path; copy it down first with storage.fetch()")
    return Path(url.removeprefix("file://"))


def join(url: str, *parts: str) -> str:
    """A child of a URL."""
    return "/".join([url.rstrip("/"), *(part.strip("/") for part in parts)])


def _filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(url)
    return filesystem, str(path)


def exists(url: str) -> bool:
    """Whether a file or folder is there."""
    if is_local(url):
        return local_path(url).exists()
    filesystem, path = _filesystem(url)
    return bool(filesystem.exists(path))


def listing(url: str) -> list[str]:
    """Names directly under a folder, sorted; empty when the folder is not there."""
    if is_local(url):
        folder = local_path(url)
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    filesystem, path = _filesystem(url)
    with contextlib.suppress(FileNotFoundError):
        return sorted(item.rstrip("/").rpartition("/")[2] for item in filesystem.ls(path, detail=False))
    return []


def read_bytes(url: str) -> bytes:
    """Whole content of one file."""
    if is_local(url):
        return local_path(url).read_bytes()
    filesystem, path = _filesystem(url)
    return bytes(filesystem.cat_file(path))


@contextlib.contextmanager
def open_read(url: str) -> Iterator[BinaryIO]:
    """A file as a stream of bytes, for what is too large to hold at once."""
    if is_local(url):
        with local_path(url).open("rb") as file:
            yield file
        return
    filesystem, path = _filesystem(url)
    with filesystem.open(path, "rb") as file:
        yield file


def walk(url: str) -> list[str]:
    """Every file below a folder, by its path in it, sorted; a file has itself, by the empty path."""
    if is_local(url):
        root = local_path(url)
        if root.is_file():
            return [""]
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    filesystem, path = _filesystem(url)
    if filesystem.isfile(path):
        return [""]
    return sorted(found.removeprefix(path).lstrip("/") for found in filesystem.find(path))


def read_text(url: str) -> str:
    """Whole content of one UTF-8 file."""
    return read_bytes(url).decode()


def read_json(url: str) -> Any:
    """Content of one JSON file."""
    return json.loads(read_bytes(url))


def write_bytes(url: str, content: bytes) -> None:
    """Publish one file atomically, replacing what was there."""
    if not is_local(url):
        filesystem, path = _filesystem(url)
        filesystem.pipe_file(path, content)  # one PUT: an object store shows all of it or nothing
        return
    target = local_path(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def write_text(url: str, content: str) -> None:
    """Publish one UTF-8 file atomically."""
    write_bytes(url, content.encode())


def write_json(url: str, content: Any) -> None:
    """Publish one JSON file atomically: sorted keys, so equal content is equal bytes."""
    write_text(url, json.dumps(content, indent=2, sort_keys=True, default=str) + "\n")


def publish_folder(source: Path, url: str, *, last: str | None = None) -> str:
    """Move a finished local folder to its final place; `last` names the file that must appear last.

    Local: flush every file, then one rename (on the same file system). Elsewhere: upload, with `last` (the
    manifest) uploaded after everything else, so that a reader who starts from it never sees half.
    """
    if is_local(url):
        target = local_path(url)
        if target.exists():
            raise FileExistsError(f"{target} is already published; published folders never change")
        _sync_tree(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.stat().st_dev == target.parent.stat().st_dev:
            source.rename(target)
        else:
            aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
            shutil.copytree(source, aside)
            _sync_tree(aside)
            aside.rename(target)
            shutil.rmtree(source)
        _sync_folder(target.parent)
        return url
    filesystem, path = _filesystem(url)
    files = sorted(p for p in source.rglob("*") if p.is_file())
    for file in sorted(files, key=lambda p: p.name == last):
        filesystem.put_file(str(file), f"{path}/{file.relative_to(source).as_posix()}")
    return url


def fetch(url: str, scratch: Path | None = None) -> Path:
    """A local folder or file with the content of `url`: itself when local, a copy elsewhere."""
    if is_local(url):
        return local_path(url)
    filesystem, path = _filesystem(url)
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="fetched-"))
    target = folder / path.rpartition("/")[2]
    filesystem.get(path, str(target), recursive=True)
    return target


def sha256_of_bytes(content: bytes) -> str:
    """Hex SHA-256 of bytes in memory."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a local file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        _sync_folder(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
