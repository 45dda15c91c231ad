"""Documents that are almost the same as an earlier one: MinHash finds them, their shared words decide.

Each text is the set of its runs of five words (Broder's shingles), and two texts are as alike as these sets
overlap: shared by all (Jaccard). MinHash keeps `num_permutations` minima of a set, of which two sets share
as many as they are alike; LSH finds texts that share a whole band of minima without comparing all pairs.
Bands are chosen so that a pair at the threshold is found in 99 of 100 cases; those found are then measured
exactly, so no document is lost to an estimate. The first of a pair stays. Texts of fewer words are one
shingle.

In memory stay the minima and bands of what was kept, about 8 KB a document whatever its length.
References: Broder 1997; Lee et al. 2022, arXiv 2107.06499.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from components import plugins
from components.data.curation.words import run_hashes, word_hashes
from components.errors import ConfigError

if TYPE_CHECKING:
    from components.data.curation.words import Hashes

FOUND_SHARE = 0.99
CHUNK = 4096
"""Shingles hashed at once: 4096 x 128 minima of 4 bytes fit the cache."""
DOUBT = 4.0
"""Standard errors of the estimate beyond which a candidate is not worth reading again."""
READ_AGAIN = 8
"""Candidates that are: pages of one template are all candidates of each other."""


class Config(plugins.Config):
    """When two documents are almost the same."""

    threshold: float = Field(default=0.8, gt=0.3, le=1)
    """Share of their shingles that two documents must have in common."""

    num_permutations: int = Field(default=128, ge=32, le=512)
    """Minima kept of each document: more find a pair more surely and cost memory and time in proportion."""

    words_per_shingle: int = Field(default=5, ge=1, le=20)
    """Words in a run: fewer call texts on one subject alike, more only copies."""


class NearDuplicates:
    """The documents kept so far, by their minima."""

    def __init__(self, config: Config, text_of: Callable[[int], str]) -> None:
        """`text_of(number)` reads a kept document again."""
        from datasketch import MinHash, MinHashLSH

        self.config, self._text_of = config, text_of
        size = config.num_permutations
        self._index = MinHashLSH(num_perm=size, params=bands(config.threshold, size), hashfunc=_short)
        self._empty = MinHash(num_perm=size, hashfunc=_itself)
        self._minima: list[Any] = []

    def first_like(self, text: str) -> int | None:
        """Number of a kept document that is alike enough; without one this text counts as kept."""
        shingles = shingles_of(text, self.config.words_per_shingle)
        sketch = self._sketch(shingles)
        for number in self._likely(sketch):
            others = shingles_of(self._text_of(number), self.config.words_per_shingle)
            if jaccard(shingles, others) >= self.config.threshold:
                return number
        self._index.insert(len(self._minima), sketch, check_duplication=False)
        self._minima.append(sketch.hashvalues)
        return None

    def _likely(self, sketch: Any) -> list[int]:
        """The few that may be alike enough by their minima, likeliest first, of equals the earlier."""
        import numpy as np

        numbers = sorted(self._index.query(sketch))
        if not numbers:
            return []
        size, threshold = self.config.num_permutations, self.config.threshold
        estimates = (np.stack([self._minima[n] for n in numbers]) == sketch.hashvalues).mean(axis=1)
        least = threshold - DOUBT * (threshold * (1 - threshold) / size) ** 0.5
        order = np.argsort(-estimates, kind="stable")[:READ_AGAIN]
        return [numbers[place] for place in order if estimates[place] >= least]

    def _sketch(self, shingles: Hashes) -> Any:
        import numpy as np
        from datasketch import MinHash

        permutations, scheme = self._empty.permutations, self._empty.scheme
        sketch = MinHash(len(self._empty), hashfunc=_itself, permutations=permutations, scheme=scheme)
        for start in range(0, len(shingles), CHUNK):
            sketch.update_batch([shingles[start : start + CHUNK].astype(np.uint32)])
        return sketch


def shingles_of(text: str, words_per_shingle: int) -> Hashes:
    """Hashes of the runs of words in a text, each once; a text of fewer words is one."""
    import numpy as np
    from xxhash import xxh3_64_intdigest

    words = word_hashes(text)
    if not len(words):
        return np.array([xxh3_64_intdigest(text.encode(errors="replace"))], dtype=np.uint64)
    return np.unique(run_hashes(words, min(words_per_shingle, len(words))))


def jaccard(some: Hashes, others: Hashes) -> float:
    """Shared by all; each without repeats."""
    import numpy as np

    shared = len(np.intersect1d(some, others, assume_unique=True))
    return shared / (len(some) + len(others) - shared)


def bands(threshold: float, num_permutations: int) -> tuple[int, int]:
    """Bands and minima in each: the longest that still find a pair at the threshold in 99 of 100 cases."""
    for rows in range(num_permutations // 2, 0, -1):
        count = num_permutations // rows
        if 1 - (1 - threshold**rows) ** count >= FOUND_SHARE:
            return count, rows
    raise ConfigError(
        f"near_duplicates.threshold={threshold} cannot be found with {num_permutations} permutations; "
        f"raise data.checks.near_duplicates.num_permutations"
    )


def _itself(hashes: Hashes) -> Hashes:
    """The shingles are hashes already, and a whole array of them is one item."""
    return hashes


def _short(band: bytes) -> bytes:
    from xxhash import xxh3_64_digest

    return xxh3_64_digest(band)
