"""Texts as sequences of words, and runs of words as 64-bit hashes: what two texts share is compared by these.

A word is what stands between white space, in lower case and without punctuation, so that a changed comma or
line break hides no copy.
"""

from __future__ import annotations

import string
import sys
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

PUNCTUATION = string.punctuation.encode()
MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, so that multiplying by it loses nothing of a 64-bit word."""


def word_hashes(text: str) -> Hashes:
    """One hash a word, in the order of the text."""
    import numpy as np
    from xxhash import xxh3_64_intdigest

    words = words_of(text)
    return np.fromiter(map(xxh3_64_intdigest, words), dtype=np.uint64, count=len(words))


def words_of(text: str) -> list[bytes]:
    """The words themselves, as UTF-8."""
    text = text.lower()
    if not text.isascii():
        text = text.translate(_marks())
    return text.encode(errors="replace").translate(None, PUNCTUATION).split()


def run_hashes(words: Hashes, length: int) -> Hashes:
    """One hash for each run of `length` words; of fewer words there is none."""
    import numpy as np

    count = max(0, len(words) - length + 1)
    runs = np.zeros(count, dtype=np.uint64)
    multiplier = np.uint64(MULTIPLIER)
    for place in range(length):
        runs = (runs ^ words[place : place + count]) * multiplier
        runs ^= runs >> np.uint64(29)
    return runs


@cache
def _marks() -> dict[int, None]:
    """Punctuation and symbols beyond ASCII: quotation marks, dashes, ideographic stops."""
    found = (chr(code) for code in range(128, sys.maxunicode + 1))
    return {ord(one): None for one in found if unicodedata.category(one)[0] in "PS"}
