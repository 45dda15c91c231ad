"""mosaicml-streaming: MDS shards. Their xxh64 is compared when a shard is fetched, never when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("mosaicml-streaming==0.13.0", "torch")
BATCH = 64
SEED = 1


def build(documents: Iterable[str], folder: Path, *, shard_bytes: int) -> None:
    """Shards with a hash each."""
    streaming = _streaming()
    streaming.base.util.clean_stale_shared_memory()
    settings = {"columns": {"text": "str"}, "hashes": ["xxh64"], "size_limit": shard_bytes}
    with streaming.MDSWriter(out=str(folder), **settings) as writer:
        for text in documents:
            writer.write({"text": text})


def ready() -> None:
    """Import what reading needs."""
    _streaming()


def open_folder(folder: Path, *, workers: int, verify: bool) -> _Loader:
    """Local shards, shuffled by its default algorithm."""
    dataset = _streaming().StreamingDataset(
        local=str(folder),
        shuffle=True,
        shuffle_seed=SEED,
        batch_size=BATCH,
        validate_hash="xxh64" if verify else None,
    )
    return _Loader(dataset, workers)


class _Loader:
    """The data set counts its own epochs."""

    def __init__(self, dataset: Any, workers: int) -> None:
        self.dataset, self.workers = dataset, workers

    def samples(self, epoch: int) -> Iterator[str]:
        for sample in self.dataset:
            yield sample["text"]

    def batches(self, epoch: int) -> Iterator[list[str]]:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            self.dataset, batch_size=BATCH, num_workers=self.workers, collate_fn=texts, drop_last=False
        )
        return iter(loader)

    def state(self, batches_done: int) -> Any:
        """Its own loader infers samples from a batch's shape, and is wrong for lists; so it is told."""
        return self.dataset.state_dict(num_samples=batches_done * BATCH, from_beginning=True)

    def resume(self, state: Any) -> Iterator[list[str]]:
        self.dataset.load_state_dict(state)
        return self.batches(1)


def texts(batch: list[dict[str, str]]) -> list[str]:
    """The one column that is read."""
    return [sample["text"] for sample in batch]


def _streaming() -> Any:
    """The package; it imports torchvision for images that no text needs.

    A torchvision built for another torch than the one that is installed has no C++ operators, and then fails
    to describe them: they are declared for it.
    """
    import torch

    try:
        import torchvision  # type: ignore[import-not-found]  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import streaming  # type: ignore[import-not-found]

    return streaming
