"""The corpus that every loader is given: words drawn from a seed, about a kilobyte a document, no two alike.

Reading and digesting need the standard library alone: the environments of the peers hold nothing of ours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DOCUMENTS = 200_000
SEED = 20_260
VOCABULARY = 20_000
SHORTEST, MEAN_MORE = 40, 192.0
"""Words of the shortest document, and how many more the others have in the mean: about 1,090 bytes then."""
AT_ONCE = 10_000


def write(path: Path, *, documents: int = DOCUMENTS, seed: int = SEED) -> dict[str, Any]:
    """Write the corpus as JSON lines, unless it lies there; what it is, with the digest of its texts."""
    facts = path.with_suffix(".facts.json")
    if facts.exists() and (known := json.loads(facts.read_text()))["seed"] == seed:
        return dict(known)
    path.parent.mkdir(parents=True, exist_ok=True)
    size, digest = 0, Digest()
    with path.open("wb") as file:
        for text in draw(documents, seed):
            file.write(json.dumps({"text": text}).encode() + b"\n")
            size += len(text)
            digest.add([text])
    found = {"documents": documents, "bytes": size, "seed": seed, "digest": digest.hex()}
    facts.write_text(json.dumps({**found, "mean_bytes": round(size / documents, 1)}) + "\n")
    return dict(json.loads(facts.read_text()))


def draw(documents: int, seed: int) -> Iterator[str]:
    """Texts of words; few words are frequent and most are rare, as in a language."""
    import numpy as np

    bits = np.random.Philox(seed)
    words = _vocabulary(bits)
    for first in range(0, documents, AT_ONCE):
        count = min(AT_ONCE, documents - first)
        lengths = SHORTEST + (-np.log1p(-_uniform(bits, count)) * MEAN_MORE).astype(np.int64)
        ranks = (VOCABULARY ** _uniform(bits, int(lengths.sum()))).astype(np.int64) - 1
        drawn, start = list(map(words.__getitem__, ranks.tolist())), 0
        for number, length in enumerate(lengths.tolist()):
            yield " ".join((f"{first + number:x}", *drawn[start : start + length]))
            start += length


def _vocabulary(bits: Any) -> list[str]:
    """Words of 2 to 10 letters, the frequent ones among the short."""
    import numpy as np

    lengths = 2 + np.minimum(8, 1 + 9 * np.arange(VOCABULARY) // VOCABULARY)
    letters = (97 + 26 * _uniform(bits, int(lengths.sum()))).astype(np.uint8).tobytes().decode()
    ends = np.cumsum(lengths)
    return [letters[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def _uniform(bits: Any, count: int) -> Any:
    """Numbers in [0, 1) from raw bits: numpy keeps a generator's bits the same, but not its methods."""
    return (bits.random_raw(count) >> 11) * 2.0**-53


def read(path: Path) -> Iterator[str]:
    """The texts of a corpus, in order."""
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)["text"]


class Digest:
    """Of texts in whatever order: the sum of their hashes, so that one text lost or read twice shows."""

    def __init__(self) -> None:
        self.total, self.texts = 0, 0

    def add(self, texts: Iterable[str]) -> None:
        """Take some more texts in."""
        for text in texts:
            self.texts += 1
            self.total += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())

    def hex(self) -> str:
        """The digest so far."""
        return f"{self.total % 2**128:032x}"
