"""litdata: binary chunks, shuffled within windows and between chunks; no checksum.

It decodes 256 neighbours at once, and shuffles in windows of as many, counted from where a worker starts. A
worker that starts inside a chunk straddles two such blocks and decodes most rows again and again: with two
workers its figures differ several times from epoch to epoch. No bar rests on them; its default is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("litdata==0.2.76", "torch")
BATCH = 64
SEED = 1


def build(documents: Iterable[str], folder: Path, *, shard_bytes: int) -> None:
    """Chunks of text, as `optimize` makes them in a process."""
    import litdata  # type: ignore[import-not-found]

    inputs = list(documents)
    litdata.optimize(
        unchanged, inputs, str(folder), chunk_bytes=shard_bytes, num_workers=1, keep_data_ordered=True
    )


def unchanged(text: str) -> str:
    """What is written is what is given."""
    return text


def ready() -> None:
    """Import what reading needs."""
    import litdata  # noqa: F401


def open_folder(folder: Path, *, workers: int, verify: bool) -> _Loader:
    """It has no checks to ask for."""
    return _Loader(folder, workers)


class _Loader:
    def __init__(self, folder: Path, workers: int) -> None:
        self.folder, self.workers = folder, workers
        self._dataset: Any = None
        self._loader: Any = None

    def samples(self, epoch: int) -> Iterator[str]:
        if self._dataset is None:
            self._dataset = self._open()
        return iter(self._dataset)

    def batches(self, epoch: int) -> Iterator[list[str]]:
        return iter(self._batched())

    def state(self, batches_done: int) -> Any:
        return self._batched().state_dict()

    def resume(self, state: Any) -> Iterator[list[str]]:
        loader = self._batched()
        loader.load_state_dict(state)
        return iter(loader)

    def _open(self) -> Any:
        import litdata

        return litdata.StreamingDataset(str(self.folder), shuffle=True, seed=SEED, drop_last=False)

    def _batched(self) -> Any:
        """Its loader counts epochs, so there is one."""
        import litdata

        from case_studies.benchmarks.measure import identity

        if self._loader is None:
            self._loader = litdata.StreamingDataLoader(
                self._open(), batch_size=BATCH, num_workers=self.workers, collate_fn=identity
            )
        return self._loader
