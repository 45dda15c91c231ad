"""Parquet: one document a row, from a file, a folder or a glob on any fsspec URL.

Use it for published corpora and for text beside many other columns: only the asked columns are fetched. It
streams batches of a row group, so memory follows the page size of the file, not its length, and page
checksums are checked where the writer left them. A null, a text that is not UTF-8 and one that is too large
come as a document with a flaw; a file that ends early is a `DataError`, as its directory stands at its end.
Rows count from 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from pydantic import Field

from components import plugins, storage
from components.data.columns import check_fields, documents_in
from components.data.document import Document
from components.data.files import Found, matching
from components.errors import DataError

PATTERNS = ("**/*.parquet",)


class Config(plugins.Config):
    """Where the rows are and which columns matter."""

    path: str = Field(min_length=1)
    """File, folder or glob: local, or any fsspec URL (`s3://bucket/corpus/*.parquet`)."""

    text_field: str = Field(default="text", min_length=1)
    """Column that holds the text."""

    path_field: str | None = Field(default=None, min_length=1)
    """Column that names a document; without one, or where it is null, `FILE:ROW` does, counted from 0."""

    max_bytes: int = Field(default=16_000_000, ge=1, le=1_000_000_000)
    """A longer text is set aside as `too_large`."""

    batch_rows: int = Field(default=1_000, ge=1, le=1_000_000)
    """Rows held in memory at a time."""

    max_documents: int | None = Field(default=None, ge=1)
    """Stop after so many rows; None takes all."""


def read(config: Config) -> Iterator[Document]:
    """Each row, file by file in the order of their paths."""
    found = matching(config.path, PATTERNS)
    documents = (document for file in found for document in _documents(file, config))
    return islice(documents, config.max_documents)


def _documents(file: Found, config: Config) -> Iterator[Document]:
    row = 0
    for batch in _batches(file, config):
        yield from documents_in(
            batch,
            config.text_field,
            config.path_field,
            name=file.path,
            first_row=row,
            max_bytes=config.max_bytes,
        )
        row += batch.num_rows


def _batches(file: Found, config: Config) -> Iterator[Any]:
    """Record batches of the asked columns; as many rows as the file says it has, or an error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [name for name in (config.text_field, config.path_field) if name]
    rows = 0
    try:
        with (
            storage.open_read(file.url) as opened,
            pq.ParquetFile(opened, page_checksum_verification=True) as table,
        ):
            check_fields(table.schema_arrow, config.text_field, config.path_field, file.url)
            for batch in table.iter_batches(config.batch_rows, columns=columns):
                rows += batch.num_rows
                yield batch
            expected = table.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.url}: cannot be read past row {rows}: {error}; replace the file") from error
    if rows != expected:
        raise DataError(f"{file.url}: has {rows} rows, its footer says {expected}; replace the file")
