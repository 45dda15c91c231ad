"""A `datasets` repository: one of the Hugging Face hub, or a folder laid out like one, streamed row by row.

Use it for a published corpus by its name, or to try its layout (`README.md` with configurations, files in
`data/`) before it is published. Nothing is converted or cached: rows stream from the repository's own files;
a folder elsewhere (`s3://`) is first copied down, and the copy removed afterwards. Whole rows are read, and
`datasets` imports torch, which takes seconds; plain Parquet files are cheaper through `parquet`. No code of
a repository is ever run: a loading script is refused. Stanchion keeps the hub client offline unless
HF_HUB_OFFLINE=0 stands in the environment; pin `revision` to a commit there, or the same run may read other
text tomorrow.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from pydantic import Field

from components import plugins, storage
from components.data.columns import check_fields, documents_in
from components.data.document import Document
from components.errors import ConfigError, DataError

HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")
UNSAFE = {".zst", ".tar", ".tgz"}
BATCH_ROWS = 1_000


class Config(plugins.Config):
    """Which repository, which part of it, and which columns matter."""

    path: str = Field(min_length=1)
    """Name on the hub (`owner/name`), or a folder: local, or any fsspec URL."""

    name: str | None = Field(default=None, min_length=1)
    """Configuration of the repository; None takes its default one."""

    split: str = Field(default="train", min_length=1)
    """Split that is read; `a+b` reads two, `all` every one."""

    revision: str | None = Field(default=None, min_length=1)
    """Commit, tag or branch on the hub."""

    text_field: str = Field(default="text", min_length=1)
    """Column that holds the text."""

    path_field: str | None = Field(default=None, min_length=1)
    """Column that names a document; without one, or where it is null, `SPLIT:ROW` does, counted from 0."""

    max_bytes: int = Field(default=16_000_000, ge=1, le=1_000_000_000)
    """A longer text is set aside as `too_large`."""

    max_documents: int | None = Field(default=None, ge=1)
    """Stop after so many rows; None takes all."""


def read(config: Config) -> Iterator[Document]:
    """Each row of a split, in its order."""
    return islice(_documents(config), config.max_documents)


def _documents(config: Config) -> Iterator[Document]:
    where = f"{config.path}, split '{config.split}'"
    with tempfile.TemporaryDirectory(prefix="stanchion-datasets-") as scratch:
        row = 0
        for table in _tables(_opened(config, Path(scratch)), where):
            if not row:
                check_fields(table.schema, config.text_field, config.path_field, where)
            yield from documents_in(
                table,
                config.text_field,
                config.path_field,
                name=config.split,
                first_row=row,
                max_bytes=config.max_bytes,
            )
            row += table.num_rows
    if not row:
        raise DataError(f"{where} has no rows; choose another split or data set")


def _opened(config: Config, scratch: Path) -> Any:
    """The split as a stream; what does not fit is told in our words and in those of `datasets`."""
    import datasets
    import pyarrow

    path = _repository(config, scratch)
    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(
            path, config.name, revision=config.revision, cache_dir=str(scratch / "cache")
        )
        _refuse_what_may_end_unseen(builder.config.data_files)
        return builder.as_streaming_dataset(split=config.split)
    except (pyarrow.ArrowException, EOFError, StopIteration) as error:
        raise DataError(f"{config.path}: a file is damaged or empty: {error}; replace it") from error
    except (ValueError, OSError, RuntimeError) as error:
        asked = f"name={config.name!r}, split={config.split!r}, revision={config.revision!r}"
        unreached = isinstance(error, ConnectionError)
        hint = "; set HF_HUB_OFFLINE=0 in the environment to reach the hub" if unreached else ""
        raise ConfigError(f"cannot open {config.path} with {asked}: {error}{hint}") from error


def _refuse_what_may_end_unseen(data_files: Mapping[str, Sequence[object]]) -> None:
    """`datasets` takes a zstd stream or a tar that is cut short for a whole one."""
    for file in (str(file) for split in data_files.values() for file in split):
        if not UNSAFE.isdisjoint(PurePath(file).suffixes):
            raise ConfigError(
                f"{file} could end early unseen; read .zst with the source jsonl, and unpack tars"
            )


def _repository(config: Config, scratch: Path) -> str:
    """What `datasets` is given: an absolute folder, or a name that can only be one of the hub."""
    here = storage.is_local(config.path)
    if here and not storage.exists(config.path) and HUB_NAME.fullmatch(config.path):
        return config.path
    if storage.walk(config.path) in ([], [""]):
        raise ConfigError(
            f"{config.path} is neither a folder with files nor a name on the hub (owner/name); "
            f"single files are read by the sources jsonl and parquet"
        )
    if config.revision:
        raise ConfigError(f"{config.path} is a folder and has no revision '{config.revision}'; leave it out")
    return str((storage.local_path(config.path) if here else storage.fetch(config.path, scratch)).resolve())


def _tables(dataset: Any, where: str) -> Iterator[Any]:
    """Arrow tables of the stream; a file that cannot be read to its end is an error with the row."""
    row = 0
    try:
        for table in dataset.with_format("arrow").iter(batch_size=BATCH_ROWS):
            yield table
            row += table.num_rows
    except (ValueError, OSError, EOFError, RuntimeError) as error:  # Arrow's own are among the first two
        raise DataError(f"{where}: cannot be read past row {row}: {error}; replace the file") from error
