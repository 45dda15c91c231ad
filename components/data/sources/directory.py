"""Text files of a folder, one document a file, chosen by glob patterns on any fsspec URL.

Use it for a checkout of code, a folder of articles, or a bucket of text files. Local files cost one read
each. An object store costs two requests a file, so up to `readers` files are read ahead, and still given in
the order of their paths; pack many small files into `jsonl` or `parquet` when they are read more than once.
Hidden files and folders (`.git`) are left out unless `without` says otherwise. A file that is too large or
not UTF-8 comes as a document with a flaw, so that curation counts it and lists it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from pydantic import Field

from components import plugins, storage
from components.data.document import Document, document_of, flawed
from components.data.files import Found, matching


class Config(plugins.Config):
    """Where the files are and which are taken."""

    path: str = Field(min_length=1)
    """Folder, file or glob: local, or any fsspec URL (`s3://bucket/articles`)."""

    patterns: tuple[str, ...] = Field(default=("**/*.txt", "**/*.md"), min_length=1)
    """Which files below a folder are read; `*` stays inside one folder, `**` stands for any folders."""

    without: tuple[str, ...] = ("**/.*", "**/.*/**")
    """Which of those are left out."""

    max_bytes: int = Field(default=10_000_000, ge=1, le=1_000_000_000)
    """A larger file is set aside as `too_large`; no more of it is read."""

    readers: int = Field(default=8, ge=1, le=64)
    """Files read at a time where they are remote; each may take `max_bytes` of memory."""

    max_documents: int | None = Field(default=None, ge=1)
    """Stop after so many files; None takes all."""


def read(config: Config) -> Iterator[Document]:
    """Each file, in the order of its path below the folder."""
    found = matching(config.path, config.patterns, without=config.without)[: config.max_documents]
    if storage.is_local(config.path):
        return (_document(file, config.max_bytes) for file in found)
    return _read_ahead(found, config)


def _document(file: Found, max_bytes: int) -> Document:
    with storage.open_read(file.url) as opened:
        content = opened.read(max_bytes + 1)
    if len(content) > max_bytes:
        return flawed(content, file.path, "too_large")
    return document_of(content, file.path)


def _read_ahead(found: list[Found], config: Config) -> Iterator[Document]:
    """Wait for one file while the next ones are on their way."""
    rest = iter(found)
    with ThreadPoolExecutor(config.readers, thread_name_prefix="read-ahead") as pool:
        ahead: deque[Future[Document]] = deque()
        try:
            while True:
                room = config.readers - len(ahead)
                ahead.extend(pool.submit(_document, file, config.max_bytes) for file in islice(rest, room))
                if not ahead:
                    return
                yield ahead.popleft().result()
        finally:
            for one in ahead:
                one.cancel()
