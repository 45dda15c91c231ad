"""Byte-level BPE trained on the corpus itself: any text has ids, and ids have exactly that text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from components import plugins, storage
from components.errors import DataError, ShardIntegrityError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from components.data.manifest import Manifest

FILES = ("tokenizer.json", "tokenizer_config.json")
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
"""Also begin-of-text and padding."""


class Config(plugins.Config):
    """Size of the vocabulary."""

    vocab_size: int = Field(default=2048, ge=300, le=200_000)
    """Entries of the vocabulary, special tokens included."""

    sample_characters: int = Field(default=100_000_000, ge=1_000_000)
    """Characters of the train split to learn it from; of a larger one a sample is read."""


def train(texts: Iterable[str], config: Config) -> Tokenizer:
    """Merge the most frequent pairs until the vocabulary is full; equal texts give an equal tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write what `load`, transformers and vLLM read."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def fetch(url: str, manifest: Manifest, folder: Path) -> Path:
    """Copy a data set's tokenizer, and nothing else of it, into a folder, as its manifest says."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        try:
            content, expected = storage.read_bytes(storage.join(url, name)), manifest.files[name].sha256
        except (FileNotFoundError, KeyError):
            raise ShardIntegrityError(
                f"{name} is missing from {url} or from its manifest; restore it or build the data set again"
            ) from None
        if (found := storage.sha256_of_bytes(content)) != expected:
            raise ShardIntegrityError(
                f"{name} of {url} has SHA-256 {found}, its manifest says {expected}; "
                "a model that is saved with it would speak another language: restore the file or build the "
                "data set again"
            )
        (folder / name).write_bytes(content)
    return folder


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a data set, checkpoint or release."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise DataError(f"no tokenizer.json in {folder}; give the folder of a data set or a checkpoint")
    return Tokenizer.from_file(str(path))
