"""What a document must be to be kept."""

from __future__ import annotations

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """Bounds of a good document."""

    min_characters: int = Field(default=64, ge=1)
    """Shorter documents are set aside."""

    max_characters: int = Field(default=1_000_000, ge=1)
    """Longer documents are set aside."""
