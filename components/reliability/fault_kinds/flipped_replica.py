"""One bit of one rank's copy of the model flips, low enough that nothing shows it: not the loss, not a norm.

Without ZeRO in the copy that lasts, which is the fp32 master; under ZeRO 1 and 2 in the weights, which the
next step gathers anew.
"""

from __future__ import annotations

from typing import Any

from components import plugins

POINT = "replica"


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config, engine: Any) -> None:
    """Flip the lowest bit of the middle element of the largest tensor that lasts."""
    from components.checkpoints.digests import partition
    from components.reliability.bits import flip
    from components.training.replicas import replicated

    masters = {name: one for name, one in partition(engine).items() if name.startswith("master")}
    copies = replicated(engine)
    lasting = {name: one for name, one in copies.items() if name in masters} or copies
    largest = max(lasting.values(), key=lambda one: one.numel())
    flip(largest, largest.numel() // 2, 0)
