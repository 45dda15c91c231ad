"""Byte-level BPE trained on the corpus itself."""

from __future__ import annotations

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """Size of the vocabulary."""

    vocab_size: int = Field(default=2048, ge=300, le=200_000)
    """Entries of the vocabulary, special tokens included."""
