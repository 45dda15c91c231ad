"""Every read of a shard takes long for a while, as from a mount that is overloaded or fails over.

Shards are read by `os.pread` and by nothing else, so that call of this process is what becomes slow; the
kernel's own is not, and loader workers that are already running are spared. Samples that a rank still holds
in memory are not read again: a data set that fits there shows nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How slow, for how long."""

    seconds: float = Field(default=0.25, gt=0)
    """That each read takes longer."""

    lasts: float = Field(default=10.0, gt=0)
    """Seconds from the strike on; a strike in a later step begins them anew."""


def strike(config: Config) -> None:
    """Put a wait before each read of this process, until the time is over."""
    until, real = time.monotonic() + config.lasts, getattr(os.pread, "real", os.pread)

    def slow(*arguments: Any) -> bytes:
        if time.monotonic() < until:
            time.sleep(config.seconds)
        return bytes(real(*arguments))

    slow.real = real  # type: ignore[attr-defined]
    os.pread = slow
