"""A data set while it is being written: what there will be, where each thing lies, and who holds it.

The folder of a plan is emptied when its data set is published, and after a crash says what need not be done
again:

    files/           what will be published, and nothing else
    receipts/        one for each finished shard, with the counts of its tokens
    partial/         shards that are not finished, a folder for each process
    uploaded.jsonl   what a store has already
    lock             held while a run writes here
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from components.data.curation.checked import Kept
from components.data.spool import Documents, Spool
from components.data.writing.layout import Part
from components.errors import DataError


@dataclass(frozen=True)
class Plan:
    """All that a process must know to write any shard; small, since everything large is in files."""

    folder: Path
    documents: Documents
    tokenizer_sha256: str
    parts: list[Part]

    @property
    def files(self) -> Path:
        """What becomes the data set."""
        return self.folder / "files"

    @property
    def partial(self) -> Path:
        """Where shards lie until they are whole."""
        return self.folder / "partial"

    @property
    def ledger(self) -> Path:
        """Which files a store has already."""
        return self.folder / "uploaded.jsonl"

    def receipt(self, name: str) -> Path:
        """What says that a shard is whole."""
        return self.folder / "receipts" / f"{name}.receipt.json"

    def counts(self, name: str) -> Path:
        """How often each token stands in a shard."""
        return self.folder / "receipts" / f"{name}.counts.npy"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder that no other run writes in meanwhile; gone at the end, and kept after an error."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"another run is writing a data set in {folder}; wait for it, or start one in a "
                "folder of its own with --set edition=WORD"
            ) from None
        yield
        shutil.rmtree(folder)


def on_disk(kept: Kept, folder: Path) -> Documents:
    """Kept documents where every process can read them."""
    if isinstance(kept, Documents):
        return kept
    with Spool(folder / "documents.jsonl") as spool:
        for document in kept:
            spool.append(document)
    return spool.documents()
