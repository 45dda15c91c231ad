"""The rank computes beside its work, as on a throttled or shared device; once in each of `steps`."""

from __future__ import annotations

import time

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How much slower."""

    seconds: float = Field(default=0.5, gt=0)
    """Seconds of computing that each step gains."""


def strike(config: Config) -> None:
    """Burn one core for the given seconds."""
    until = time.perf_counter() + config.seconds
    while time.perf_counter() < until:
        pass
