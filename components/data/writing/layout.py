"""Which documents go into which shard: decided from their order alone, before any is written."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from components.data.document import Document
from components.data.manifest import SPLITS
from components.data.shards import Config, split_of
from components.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Part:
    """One shard that is to be written."""

    name: str
    split: str
    source: str
    numbers: NDArray[np.int64]
    """Its documents, by their place among those kept."""


def layout(kept: Iterable[Document], config: Config) -> list[Part]:
    """Every shard of a data set, numbered through its split; each holds one split and one source.

    Sources follow each other as they first appear in the corpus. Held in memory are 8 bytes a document.
    """
    found: dict[str, dict[str, array[int]]] = {}
    number = -1
    for number, document in enumerate(kept):
        if (of_source := found.get(document.source)) is None:
            of_source = found[document.source] = {split: array("q") for split in SPLITS}
        of_source[split_of(document, config)].append(number)
    for split in SPLITS:
        if not any(of_source[split] for of_source in found.values()):
            raise DataError(
                f"none of {number + 1} documents fell into split '{split}' with held_out_share="
                f"{config.held_out_share}; add documents or change data.shards.held_out_share"
            )
    return [part for split in SPLITS for part in _parts(split, found, config.documents_per_shard)]


def _parts(split: str, found: dict[str, dict[str, array[int]]], size: int) -> Iterator[Part]:
    import numpy as np

    count = 0
    for source, of_source in found.items():
        numbers = np.array(of_source[split], dtype=np.int64)
        for start in range(0, len(numbers), size):
            yield Part(f"{split}-{count:06d}.tar", split, source, numbers[start : start + size])
            count += 1
