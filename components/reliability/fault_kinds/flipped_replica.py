"""One bit of one rank's copy of the model flips; the lowest, unless told otherwise, so that nothing shows it.

Without ZeRO in the copy that lasts, which is the fp32 master; under ZeRO 1 and 2 in the weights, which the
next step gathers anew.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from components import plugins

POINT = "replica"


class Config(plugins.Config):
    """Which bit."""

    bit: int = Field(default=0, ge=0)
    """Counted from the lowest; of an fp32 master, 23 to 30 are the exponent."""


def strike(config: Config, engine: Any) -> None:
    """Flip it in the middle element of the largest tensor that lasts."""
    from components.checkpoints.digests import partition
    from components.reliability.bits import flip
    from components.training.replicas import replicated

    masters = {name: one for name, one in partition(engine).items() if name.startswith("master")}
    copies = replicated(engine)
    lasting = {name: one for name, one in copies.items() if name in masters} or copies
    largest = max(lasting.values(), key=lambda one: one.numel())
    flip(largest, largest.numel() // 2, config.bit)
