"""The main thread stands still and the others run on, as in a lock that nobody gives back."""

from __future__ import annotations

import time

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How long."""

    seconds: float = Field(default=3600, gt=0)
    """Seconds that the thread sleeps."""


def strike(config: Config) -> None:
    """Sleep in this thread."""
    time.sleep(config.seconds)
