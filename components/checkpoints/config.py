"""How a job saves its checkpoints: beside training or not, where else to, and what a failed save means."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """Saving; the defaults stop training only while the state is copied in memory."""

    asynchronous: bool = True
    """Write beside training. False waits for each checkpoint, which needs no second copy in memory."""

    on_failure: Literal["stop", "continue"] = "stop"
    """What a save that failed (disk full, store away) means: an error at the next step, or an event."""

    copy_to: str | None = None
    """Folder or URL of a second tier: each checkpoint is copied there once it is published."""

    read_back: bool = True
    """Read every file from the device again before the manifest vouches for it."""

    timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest wait of rank 0 for the files of the others."""
