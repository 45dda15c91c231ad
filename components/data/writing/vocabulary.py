"""What the tokenizer learns from: the train split alone, and of a large one a fair sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from components.data import shards, tokenizer
from components.data.curation.checked import Kept

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def learn(kept: Kept, config: tokenizer.Config, layout: shards.Config) -> Tokenizer:
    """A vocabulary in which held-out text had no say; documents pass through memory one at a time."""
    return tokenizer.train(sample(kept, layout, config.sample_characters), config)


def sample(kept: Kept, layout: shards.Config, characters: int) -> Iterator[str]:
    """Train texts of about so many characters; a document's content decides whether it is among them."""
    train = (document for document in kept if shards.split_of(document, layout) == "train")
    total = sum(len(document.text) for document in train)
    bound = 2**64 if total <= characters else characters * 2**64 // total
    for document in kept:
        if shards.split_of(document, layout) == "train" and _drawn(document.sha256) < bound:
            yield document.text


def _drawn(sha256: str) -> int:
    return int.from_bytes(hashlib.sha256(b"vocabulary:" + sha256.encode()).digest()[:8])
