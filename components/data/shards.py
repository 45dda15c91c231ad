"""Samples in WebDataset tars."""

from __future__ import annotations

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How samples are laid out in tar files."""

    documents_per_shard: int = Field(default=256, ge=1)
    """Documents in one tar."""

    held_out_share: float = Field(default=0.06, gt=0, lt=0.5)
    """Share of documents kept for evaluation; a document is wholly in one split."""
