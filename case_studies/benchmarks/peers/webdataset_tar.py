"""webdataset: plain tars, shards in a shuffled order and samples through a buffer of a thousand.

It keeps no position: what resumes must seed everything itself and read again what it had read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("webdataset==1.0.2", "numpy", "torch")
BUFFER = 1000
BATCH = 64


def build(documents: Iterable[str], folder: Path, *, shard_bytes: int) -> None:
    """A `.txt` member a sample."""
    import webdataset

    folder.mkdir(parents=True)
    with webdataset.ShardWriter(
        str(folder / "train-%06d.tar"), maxsize=shard_bytes, mtime=0, verbose=0
    ) as writer:
        for number, text in enumerate(documents):
            writer.write({"__key__": f"{number:08d}", "txt": text})


def ready() -> None:
    """Import what reading needs."""
    import webdataset  # noqa: F401
    from torch.utils.data import DataLoader  # noqa: F401


def open_folder(folder: Path, *, workers: int, verify: bool) -> _Loader:
    """It has no checks to ask for."""
    return _Loader(sorted(map(str, folder.glob("*.tar"))), workers)


def text_of(sample: dict[str, Any]) -> str:
    """The one member that is read."""
    text: str = sample["txt"].decode()
    return text


class _Loader:
    def __init__(self, urls: list[str], workers: int) -> None:
        self.urls, self.workers = urls, workers

    def samples(self, epoch: int) -> Iterator[str]:
        for sample in self._dataset(epoch):
            yield sample["txt"].decode()

    def batches(self, epoch: int) -> Iterator[list[str]]:
        from torch.utils.data import DataLoader

        from case_studies.benchmarks.measure import identity

        dataset = self._dataset(epoch).map(text_of)
        return iter(DataLoader(dataset, batch_size=BATCH, num_workers=self.workers, collate_fn=identity))

    def state(self, batches_done: int) -> int:
        return batches_done

    def resume(self, state: Any) -> Iterator[list[str]]:
        return itertools.islice(self.batches(1), state, None)

    def _dataset(self, epoch: int) -> Any:
        import webdataset

        shards = webdataset.WebDataset(self.urls, shardshuffle=len(self.urls), seed=epoch)
        return shards.shuffle(BUFFER, seed=epoch)
