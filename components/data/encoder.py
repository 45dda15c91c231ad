"""Ids of whole documents, with each distinct word given to the tokenizer once.

Byte-level BPE cuts a text into words before it merges anything, so equal words have equal ids wherever they
stand. Most of a corpus is words seen before: here they cost one look-up, and the ids are those of the
library, which alone says what a new word becomes. On documents of 1 KB that is several times faster than the
library (`make bench-data`). Only a tokenizer that cuts as `tokenizer.train` makes it is treated so.

In ASCII the cuts need no table of Unicode, whose versions differ between libraries. Around other letters the
text is cut where every version agrees, and what lies between two cuts goes to the library whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from components.data.tokenizer import END_OF_TEXT_ID

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

WORDS = 1 << 20
"""So many are remembered, about 150 MB; then it begins anew."""
LONGEST = 64
"""A longer word comes but once."""

_words_of_ascii = re.compile(
    r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
).findall
_certain_cuts = re.compile(r"(?<=[!-~])(?= [!-~])|(?<=[!-~]\n)(?=[!-~])").split


class Encoder:
    """Turns documents into ids: `Encoder(tokenizer)(texts)`; holds words, so keep it.

    A document that spells out `<|endoftext|>` gets the ids of its letters: only we end a document.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers import Tokenizer

        own = Tokenizer.from_str(tokenizer.to_str())
        own.encode_special_tokens = True
        self._library = own
        self.vocab_size = own.get_vocab_size()
        self._dtype = np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")
        self._end = np.array([END_OF_TEXT_ID], self._dtype).tobytes()
        self._of_word = _Words(self._from_library)
        self._by_word = cuts_as_here(own)

    def __call__(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Ids of each document, read-only, ending in end-of-text, in the smallest type for the vocabulary."""
        encoded = self._from_words if self._by_word else self._from_library
        return [np.frombuffer(encoded(text) + self._end, self._dtype) for text in texts]

    def _from_words(self, text: str) -> bytes:
        words = _words_of_ascii(text) if text.isascii() else _words(text)
        return b"".join(map(self._of_word.__getitem__, words))

    def _from_library(self, text: str) -> bytes:
        return np.array(self._library.encode(text, add_special_tokens=False).ids, self._dtype).tobytes()


class _Words(dict[str, bytes]):
    """What the library made of each word."""

    def __init__(self, ask: Callable[[str], bytes]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, word: str) -> bytes:
        ids = self._ask(word)
        if len(word) <= LONGEST:
            if len(self) >= WORDS:
                self.clear()
            self[word] = ids
        return ids


def cuts_as_here(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer cuts a text where this module does, and does nothing else to it."""
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    cuts, model = made["pre_tokenizer"] or {}, made["model"]
    return (
        (cuts.get("type"), cuts.get("add_prefix_space"), cuts.get("use_regex")) == ("ByteLevel", False, True)
        and (model["type"], model["dropout"]) == ("BPE", None)
        and all(one["special"] for one in made["added_tokens"])
        and not any(made[step] for step in ("normalizer", "post_processor", "truncation", "padding"))
    )


def _words(text: str) -> Iterator[str]:
    for piece in _certain_cuts(text):
        if piece.isascii():
            yield from _words_of_ascii(piece)
        else:
            yield piece
