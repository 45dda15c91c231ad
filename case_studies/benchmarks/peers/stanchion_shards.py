"""Ours: the shards that training reads, each text compared with its checksum when it is read.

They also hold token ids and where each document came from, so they are larger and take longer to build.
The order is a permutation of the whole corpus (of blocks of 2^18 documents, in a larger one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ()
BATCH = 64
SEED = 1
HELD_OUT = 0.01
VOCABULARY = 2048


def build(documents: Iterable[str], folder: Path, *, shard_bytes: int) -> None:
    """Shards as every data set has them, written by all cores."""
    from components.data import shards, tokenizer
    from components.data.curation.checked import Checked
    from components.data.document import document_of
    from components.data.sources import python_stdlib
    from components.data.spool import Spool
    from components.data.writing import dataset

    size, characters = 0, 0
    scratch = folder.with_name(f"{folder.name}.scratch")
    with Spool(scratch / "documents.jsonl") as spool:
        for number, text in enumerate(documents):
            spool.append(document_of(text.encode(), f"{number}.txt"))
            size, characters = number + 1, characters + len(text)
    kept = spool.documents()
    trained = tokenizer.train(
        (one.text for one in kept.part(0, 5000)), tokenizer.Config(vocab_size=VOCABULARY)
    )
    per_shard = max(1, shard_bytes * size // characters)
    dataset.make_dataset(
        Checked(kept, [], {"success": True}, digest="0" * 64, characters=characters),
        trained,
        str(folder),
        source=python_stdlib.Config(),
        config=shards.Config(documents_per_shard=per_shard, held_out_share=HELD_OUT),
        scratch=scratch,
    )
    kept.remove()


def ready() -> None:
    """Import what reading needs."""
    from torch.utils.data import DataLoader  # noqa: F401

    from components.data import reader, samples  # noqa: F401


def open_folder(folder: Path, *, workers: int, verify: bool) -> _Loader:
    """Both splits, since the others have one."""
    return _Loader(folder, workers, verify)


class _Loader:
    def __init__(self, folder: Path, workers: int, verify: bool) -> None:
        from components.data.reader import Reader
        from components.data.samples import SampleStream

        self.workers, reader = workers, Reader(str(folder), verify=verify)
        self.streams = [SampleStream(reader, split, seed=SEED) for split in ("train", "held_out")]

    def samples(self, epoch: int) -> Iterator[str]:
        return map(bytes.decode, self.read(epoch))

    def batches(self, epoch: int) -> Iterator[list[str]]:
        return self._from(epoch, 0)

    def state(self, batches_done: int) -> int:
        return batches_done * BATCH

    def resume(self, state: Any) -> Iterator[list[str]]:
        return self._from(1, state)

    def read(self, epoch: int, start: int = 0, step: int = 1) -> Iterator[bytes]:
        """Every `step`th sample of an epoch from a place on: of one split, then of the other."""
        for stream in self.streams:
            size = len(stream)
            if start < size:
                yield from stream.read(epoch * size + start, (epoch + 1) * size, step)
                start += -(-(size - start) // step) * step
            start -= size

    def _from(self, epoch: int, start: int) -> Iterator[list[str]]:
        from torch.utils.data import DataLoader

        from case_studies.benchmarks.measure import identity

        dataset = _shares()(self, epoch, start)
        return iter(DataLoader(dataset, batch_size=BATCH, num_workers=self.workers, collate_fn=identity))


def _shares() -> Any:
    """A torch data set of which each worker reads its own stride; torch is imported only when asked for."""
    from torch.utils.data import IterableDataset, get_worker_info

    class Shares(IterableDataset):  # type: ignore[misc]
        def __init__(self, loader: _Loader, epoch: int, start: int) -> None:
            self.loader, self.epoch, self.start = loader, epoch, start

        def __iter__(self) -> Iterator[str]:
            worker = get_worker_info()
            number, count = (worker.id, worker.num_workers) if worker else (0, 1)
            return map(bytes.decode, self.loader.read(self.epoch, self.start + number, count))

    return Shares
