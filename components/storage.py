"""One way to read, write, list and atomically publish, on a local folder or any fsspec URL we allow.

Local paths go to `components/local_files.py`, all others to `components/remote/`. fsspec and its clients are
imported when the first remote URL is met. Readers find files by name in a manifest; `listing` and `walk` are
for people, sources and sweepers, since what a store lists may be out of date.

Pattern: Atomic Publish
Problem: a crash in the middle of a write leaves half a file under its final name, and readers trust names.
Answer: write aside, flush to the device, then rename (a store: one put); all of the new state shows, or none.
Trade-off: one more copy of what is being written, and a leftover to sweep after a crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from components import local_files
from components.errors import ConfigError, Conflict
from components.remote import objects
from components.remote.filesystems import LOCAL, protocol_of
from components.remote.options import Config as Config
from components.remote.options import inherited as inherited
from components.remote.options import options as options
from components.remote.options import use as use


def is_local(url: str) -> bool:
    """Whether a URL names something of this machine; ConfigError for a protocol that is not allowed."""
    return protocol_of(url) in LOCAL


def local_path(url: str) -> Path:
    """The path behind a local URL."""
    if not is_local(url):
        raise ConfigError(f"{url} is not a local path; copy it down first with storage.fetch()")
    return Path(url.removeprefix("file://").removeprefix("local://"))


def join(url: str, *parts: str) -> str:
    """A child of a URL."""
    return "/".join([url.rstrip("/"), *(part.strip("/") for part in parts)])


def exists(url: str) -> bool:
    """Whether a file or folder is there."""
    return local_path(url).exists() if is_local(url) else objects.exists(url)


def size(url: str) -> int:
    """Bytes of one file."""
    if not is_local(url):
        return objects.size(url)
    path = local_path(url)
    if path.is_dir():
        raise IsADirectoryError(f"{url} is a folder")
    return path.stat().st_size


def listing(url: str) -> list[str]:
    """Names directly under a folder, sorted; empty when the folder is not there."""
    if not is_local(url):
        return objects.listing(url)
    folder = local_path(url)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def walk(url: str) -> list[str]:
    """Every file below a folder, by its path in it, sorted; a file has itself, by the empty path."""
    if not is_local(url):
        return objects.walk(url)
    root = local_path(url)
    if root.is_file():
        return [""]
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def read_bytes(url: str) -> bytes:
    """Whole content of one file, all of one version of it."""
    return local_path(url).read_bytes() if is_local(url) else objects.read_bytes(url)


def read_range(url: str, start: int, length: int) -> bytes:
    """Exactly `length` bytes of a file from byte `start`; StorageError when it ends before."""
    if start < 0 or length < 0:
        raise ValueError(f"start={start} and length={length} of a range may not be negative")
    if is_local(url):
        return local_files.read_range(local_path(url), start, length)
    return objects.read_range(url, start, length)


@contextlib.contextmanager
def open_read(url: str) -> Iterator[BinaryIO]:
    """A file as a stream of bytes, for what is too large to hold at once."""
    with local_path(url).open("rb") if is_local(url) else objects.open_read(url) as file:
        yield cast(BinaryIO, file)


def read_text(url: str) -> str:
    """Whole content of one UTF-8 file."""
    return read_bytes(url).decode()


def read_json(url: str) -> Any:
    """Content of one JSON file."""
    return json.loads(read_bytes(url))


def write_bytes(url: str, content: bytes) -> None:
    """Publish one file atomically, replacing what was there."""
    if is_local(url):
        local_files.publish(local_path(url), lambda file: file.write(content))
    else:
        objects.write_bytes(url, content)


def create_bytes(url: str, content: bytes) -> None:
    """Publish one file atomically, once: FileExistsError when it is there, for all writers but one."""
    if is_local(url):
        local_files.create(local_path(url), content)
    else:
        objects.create_bytes(url, content)


def replace_bytes(url: str, content: bytes, *, expected: bytes | None) -> None:
    """Publish one file atomically where it still is what was read; `expected` None: where there is none.

    Conflict when another writer was faster: of two that read the same, one succeeds. Local writers take a
    lock in the folder, S3 is asked by If-Match; a store without it is looked at before it is written to.
    """
    if expected is None:
        try:
            create_bytes(url, content)
        except FileExistsError:
            raise Conflict(f"{url} was written by someone else meanwhile; read it again", url=url) from None
    elif is_local(url):
        local_files.replace(local_path(url), content, expected)
    else:
        objects.replace_bytes(url, content, expected)


def write_text(url: str, content: str) -> None:
    """Publish one UTF-8 file atomically."""
    write_bytes(url, content.encode())


def write_json(url: str, content: Any) -> None:
    """Publish one JSON file atomically: sorted keys, so equal content is equal bytes."""
    write_text(url, json.dumps(content, indent=2, sort_keys=True, default=str) + "\n")


def put_file(path: Path, url: str) -> None:
    """Publish a copy of one local file atomically, of any size."""
    if is_local(url):
        local_files.copy(path, local_path(url))
    else:
        objects.put_file(path, url)


def remove(url: str) -> None:
    """Delete a file, or a folder with all below it; what is not there is no error."""
    if is_local(url):
        local_files.remove(local_path(url))
    else:
        objects.remove(url)


def publish_folder(source: Path, url: str, *, last: str | None = None) -> str:
    """Move a finished local folder to its final place; `last` names the file that must appear last.

    Local: flush every file, then one rename (on the same file system). Elsewhere: upload, with `last` (the
    manifest) created after everything else and only if there is none, so that a reader who starts from it
    never sees half, and of two publishers one fails.
    """
    if is_local(url):
        local_files.move_folder(source, local_path(url))
        return url
    final = None if last is None else source / last
    if final is not None and exists(join(url, final.name)):
        raise FileExistsError(f"{url} is already published; published folders never change")
    for file in sorted(path for path in source.rglob("*") if path.is_file() and path != final):
        put_file(file, join(url, file.relative_to(source).as_posix()))
    if final is not None:
        create_bytes(join(url, final.name), final.read_bytes())
    return url


def fetch(url: str, scratch: Path | None = None) -> Path:
    """A local folder or file with the content of `url`: itself when local, a copy elsewhere."""
    if is_local(url):
        return local_path(url)
    if not (names := walk(url)):
        raise FileNotFoundError(f"nothing is at {url}")
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="fetched-"))
    target = folder / url.rstrip("/").rpartition("/")[2]
    for name in names:
        path = target / name if name else target
        path.parent.mkdir(parents=True, exist_ok=True)
        objects.download(join(url, name) if name else url, path)
    return target


def sha256_of_bytes(content: bytes) -> str:
    """Hex SHA-256 of bytes in memory."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex SHA-256 of a local file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
