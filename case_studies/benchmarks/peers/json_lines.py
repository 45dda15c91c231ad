"""The floor: `json.loads` on the lines of one file, in order. No shuffle, no shards, no workers, no check."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ()
FILE = "corpus.jsonl"
BATCH = 64


def build(documents: Iterable[str], folder: Path, *, shard_bytes: int) -> None:
    """One line a document."""
    folder.mkdir(parents=True)
    with (folder / FILE).open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents)


def ready() -> None:
    """Nothing to import."""


def open_folder(folder: Path, *, workers: int, verify: bool) -> _Loader:
    """Read the file."""
    return _Loader(folder / FILE)


class _Loader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def samples(self, epoch: int) -> Iterator[str]:
        with self.path.open("rb") as file:
            for line in file:
                yield json.loads(line)["text"]

    def batches(self, epoch: int) -> Iterator[list[str]]:
        samples = self.samples(epoch)
        while batch := list(itertools.islice(samples, BATCH)):
            yield batch

    def state(self, batches_done: int) -> int:
        return batches_done

    def resume(self, state: Any) -> Iterator[list[str]]:
        return itertools.islice(self.batches(1), state, None)
