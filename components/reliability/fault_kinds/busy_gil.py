"""A C call keeps the interpreter lock: no Python thread of the rank runs, not even one that would report."""

from __future__ import annotations

import ctypes

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How long."""

    seconds: int = Field(default=3600, ge=1)
    """Whole seconds, as sleep(3) of the C library takes them."""


def strike(config: Config) -> None:
    """Sleep in C without giving the lock back."""
    ctypes.PyDLL(None).sleep(config.seconds)
