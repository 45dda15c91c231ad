"""Documents in the columns of an Arrow table, without trusting that a column of text holds text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from components.data.document import Document, document_of, flawed
from components.errors import ConfigError


def check_fields(schema: Any, text_field: str, path_field: str | None, where: str) -> None:
    """Refuse a schema without the asked columns, or with something else in them."""
    import pyarrow as pa

    for field in (name for name in (text_field, path_field) if name):
        if (count := schema.names.count(field)) != 1:
            raise ConfigError(
                f"{where} has {count} columns '{field}', not one; there are {', '.join(schema.names)}"
            )
        kind = schema.field(field).type
        if not _is_text(kind) and not (field == path_field and pa.types.is_integer(kind)):
            raise ConfigError(f"column '{field}' of {where} holds {kind}; name one that holds text")


def documents_in(
    table: Any, text_field: str, path_field: str | None, *, name: str, first_row: int, max_bytes: int
) -> Iterator[Document]:
    """One document a row, called `name:ROW` or as its path column says."""
    texts = _values(table, text_field)
    paths = _values(table, path_field) if path_field else [None] * len(texts)
    for row, (content, path) in enumerate(zip(texts, paths, strict=True), first_row):
        where = f"{name}:{row}" if path is None else path.decode(errors="replace")
        if content is None:
            yield flawed(b"", where, "no_text")
        elif len(content) > max_bytes:
            yield flawed(content, where, "too_large")
        else:
            yield document_of(content, where)


def _values(table: Any, field: str) -> list[bytes | None]:
    """A column as bytes: nobody checked that its text is UTF-8, and one bad row shall cost one row."""
    import pyarrow as pa

    if field not in table.schema.names:
        return [None] * table.num_rows
    column = table.column(field)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return values


def _is_text(kind: Any) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    others = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_null)
    return any(fits(kind) for fits in (*texts, *others))
