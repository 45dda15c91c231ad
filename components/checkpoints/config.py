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

    failures_per_1000_node_days: float = Field(default=3.79, gt=0)
    """What `checkpoint_every: auto` reckons with. Llama 3 (arXiv 2407.21783, section 3.3.4): 419 failures in
    54 days of 2,048 nodes; Meta's two research clusters (arXiv 2410.21680): 6.50 and 2.34."""

    timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest wait of rank 0 for the files of the others."""
