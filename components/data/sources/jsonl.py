"""JSON lines: one document a line, plain, `.gz` or `.zst`, from a file, a folder or a glob on any fsspec URL.

Use it for crawls and exports, the form most corpora are passed on in. It streams: memory is one line,
whatever the file's size and however far it inflates. Every line that holds something is accounted for: one
that is no JSON, is not UTF-8, lacks its text or is too long comes as a document with a flaw. A compressed
file that ends early or is damaged is a `DataError` with file and line, because nobody can count what it
would have held. The limits: a plain file cut between two lines, or a compressed one cut between two streams,
looks whole. Whole lines are parsed for one field; `parquet` is faster where text stands beside many others.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO, cast

from pydantic import Field

from components import plugins, storage
from components.data.document import Document, document_of, flawed
from components.data.files import Found, matching
from components.errors import DataError

PATTERNS = [f"**/*.{name}{packed}" for name in ("jsonl", "ndjson") for packed in ("", ".gz", ".zst")]
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
CHUNK_BYTES = 1 << 20
PIECE_BYTES = 256
"""Compressed bytes unpacked at once: zstd makes at most 128 KiB of four of them, so 8 MiB of a piece."""
BOMB = 100
"""A line so many times longer than allowed is not skipped but an error: it was made to waste time."""


class Config(plugins.Config):
    """Where the lines are and what is in them."""

    path: str = Field(min_length=1)
    """File, folder or glob: local, or any fsspec URL (`s3://bucket/crawl/*.jsonl.zst`)."""

    text_field: str = Field(default="text", min_length=1)
    """Field of a line that holds the text."""

    path_field: str | None = Field(default=None, min_length=1)
    """Field that names a document; without one, or where it is empty, `FILE:LINE` does, counted from 1."""

    max_line_bytes: int = Field(default=16_000_000, ge=1, le=1_000_000_000)
    """A longer line, once unpacked, is set aside as `too_large`."""

    max_documents: int | None = Field(default=None, ge=1)
    """Stop after so many documents; None takes all."""


def read(config: Config) -> Iterator[Document]:
    """Each line that is not blank, file by file in the order of their paths."""
    found = matching(config.path, PATTERNS)
    documents = (document for file in found for document in _documents(file, config))
    return islice(documents, config.max_documents)


def _documents(file: Found, config: Config) -> Iterator[Document]:
    number, limit = 0, config.max_line_bytes
    try:
        with storage.open_read(file.url) as stored, _unpacked(stored, file.path) as lines:
            while line := lines.readline(limit + 1):
                number += 1
                path = f"{file.path}:{number}"
                if len(line) > limit:
                    yield _too_large(line, lines, path, limit)
                    continue
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if not line.isspace():
                    yield _document(line, path, config)
    except (EOFError, zlib.error, gzip.BadGzipFile, DataError) as error:
        raise DataError(
            f"{file.url}: cannot be read past line {number}: {error}; replace the file"
        ) from error


def _document(line: bytes, path: str, config: Config) -> Document:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        return flawed(line, path, "not_utf8")
    except (ValueError, RecursionError):  # also numbers of many digits, and brackets nested by the thousand
        return flawed(line, path, "not_json")
    fields: dict[str, Any] = row if isinstance(row, dict) else {}
    if config.path_field:
        path = _name(fields.get(config.path_field)) or path
    text = fields.get(config.text_field)
    if not isinstance(text, str):
        return flawed(line, path, "no_text")
    return document_of(text.encode(errors="surrogatepass"), path)  # half a surrogate pair is then not UTF-8


def _name(value: object) -> str:
    return str(value).encode(errors="replace").decode() if isinstance(value, (str, int)) else ""


def _too_large(line: bytes, lines: BinaryIO, path: str, limit: int) -> Document:
    """Pass over the rest of a line without keeping it."""
    digest, size = hashlib.sha256(line), len(line)
    while not line.endswith(b"\n") and (line := lines.readline(CHUNK_BYTES)):
        digest.update(line)
        if (size := size + len(line)) > BOMB * limit:
            raise DataError(f"the next one is longer than {BOMB} times max_line_bytes={limit}")
    return Document(digest.hexdigest()[:16], "", path, digest.hexdigest(), flaw="too_large")


@contextlib.contextmanager
def _unpacked(stored: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """The lines' own bytes; a file that is not packed as its name says is refused."""
    with io.BufferedReader(cast(io.RawIOBase, stored), CHUNK_BYTES) as file:
        said = {"gz": "gzip", "zst": "zstd"}.get(name.rpartition(".")[2])
        start = file.read(4)
        file.seek(0)
        packed = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
        if said != packed:
            raise DataError(f"named like {said or 'plain text'}, but begins like {packed or repr(start)}")
        if packed == "gzip":
            yield cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
        elif packed == "zstd":
            yield io.BufferedReader(_Zstd(file), CHUNK_BYTES)
        else:
            yield file


class _Zstd(io.RawIOBase):
    """A zstd file unpacked piece by piece; unlike zstandard's own readers it tells a file that ends early."""

    def __init__(self, packed: BinaryIO) -> None:
        self._pieces = _unpacked_pieces(packed)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _unpacked_pieces(packed: BinaryIO) -> Iterator[bytes]:
    import zstandard

    stream = None
    while piece := packed.read(PIECE_BYTES):
        while piece:
            stream = stream or zstandard.ZstdDecompressor().decompressobj()
            try:
                yield stream.decompress(piece)
            except zstandard.ZstdError as error:
                raise DataError(f"damaged zstd stream: {error}") from error
            piece, stream = (stream.unused_data, None) if stream.eof else (b"", stream)
    if stream is not None:
        raise EOFError("Compressed file ended before the end-of-stream marker was reached")
