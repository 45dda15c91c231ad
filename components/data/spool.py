"""Kept documents on the local disk, so that a corpus larger than memory passes through every later step.

One JSON line a document, and beside it `<name>.offsets.npy`: where each line starts, and the file's size. The
offsets are written last: without them the spool is unfinished, and a file of another size does not fit them.
Both are errors, so a reader never takes half a corpus for the whole.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from components.data.document import Document
from components.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIELDS = [field.name for field in fields(Document)]
_decode = json.JSONDecoder().raw_decode


class Spool:
    """Documents while they are written; what an earlier run left at the path is overwritten.

    with Spool(path) as spool:
        spool.append(document)
    documents = spool.documents()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = array("q", [0])
        self._file: BinaryIO | None = None

    def __enter__(self) -> Spool:
        offsets_of(self.path).unlink(missing_ok=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w+b")
        return self

    def __getitem__(self, index: int) -> Document:
        """A document written before, while the spool is still open."""
        start, end = self._offsets[index], self._offsets[index + 1]
        file = self._open()
        file.flush()
        return _document(os.pread(file.fileno(), end - start, start))

    def append(self, document: Document) -> None:
        """Write a document behind the others."""
        line = json.dumps(_fields(document), ensure_ascii=True).encode() + b"\n"
        self._open().write(line)
        self._offsets.append(self._offsets[-1] + len(line))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import numpy as np

        if self._file is None:
            return
        self._file.close()
        self._file = None
        if kind is None:
            offsets = offsets_of(self.path)
            aside = offsets.with_suffix(".partial")
            with aside.open("wb") as file:
                np.save(file, np.frombuffer(self._offsets, dtype=np.int64), allow_pickle=False)
            os.replace(aside, offsets)

    def documents(self) -> Documents:
        """Everything written, once the spool is closed."""
        if self._file is not None:
            raise DataError(f"spool {self.path} is still open; read it after the `with` block")
        return Documents(self.path)

    def _open(self) -> BinaryIO:
        if self._file is None:
            raise DataError(f"spool {self.path} is not open; use it inside `with Spool(path) as spool:`")
        return self._file


@dataclass(frozen=True)
class Documents:
    """Documents of a spool, read anew each time they are asked for; holds and pickles only the path."""

    path: Path

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Document]:
        return self.part(0, len(self))

    def __getitem__(self, index: int) -> Document:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"document {index} of {len(self)} in {self.path}")
        return next(self.part(place, place + 1))

    def __getstate__(self) -> dict[str, Path]:
        return {"path": self.path}

    def part(self, start: int, stop: int) -> Iterator[Document]:
        """Documents `start` to `stop`, that one excluded, found by one seek."""
        start, stop, _ = slice(start, stop).indices(len(self))
        with self.path.open("rb") as file:
            file.seek(int(self._offsets[start]))
            for _ in range(start, stop):
                yield _document(file.readline())

    def labels(self) -> Iterator[Document]:
        """All documents without text and path, several times faster than with them.

        In a line every quotation mark of a value is escaped, so the last `"sha256": ` is the field's.
        """
        with self.path.open("rb") as file:
            for line in file:
                facts = _decode("{" + line[line.rfind(b'"sha256": ') :].decode("ascii"))[0]
                yield Document(facts["sha256"][:16], "", "", **facts)

    def pick(self, numbers: Iterable[int]) -> Iterator[Document]:
        """Documents by their numbers, in that order, from one open file."""
        with self.path.open("rb") as file:
            for number in numbers:
                file.seek(int(self._offsets[number]))
                yield _document(file.readline())

    def remove(self) -> None:
        """Free the disk; the documents are elsewhere by now."""
        offsets_of(self.path).unlink()
        self.path.unlink()

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        import numpy as np

        place = offsets_of(self.path)
        if not place.is_file():
            raise DataError(f"spool {self.path} was never finished; run the stage that writes it again")
        offsets: NDArray[np.int64] = np.load(place, allow_pickle=False)
        if (size := self.path.stat().st_size) != offsets[-1]:
            raise DataError(
                f"spool {self.path} has {size} bytes, {offsets[-1]} were written; "
                f"run the stage that writes it again"
            )
        return offsets


def _document(line: bytes) -> Document:
    return Document(**_decode(line.decode("ascii"))[0])


def _fields(document: Document) -> dict[str, str]:
    return {name: getattr(document, name) for name in FIELDS}


def offsets_of(path: Path) -> Path:
    """Where the starts of a spool's lines stand."""
    return path.with_name(f"{path.name}.offsets.npy")
