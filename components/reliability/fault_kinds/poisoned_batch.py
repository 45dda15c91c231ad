"""A rank trains on noise, as from a shard of garbage or another tokenizer's tokens; in each of `steps`."""

from __future__ import annotations

from typing import Any

import numpy as np

from components import plugins

POINT = "batch"


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config, batch: Any) -> None:
    """Replace every token by a random one; the same batch gives the same ones."""
    draw = np.random.default_rng(int(batch.inputs.sum()))
    highest = int(batch.inputs.max())
    batch.inputs[:] = draw.integers(0, highest + 1, batch.inputs.shape)
    counted = batch.targets >= 0
    batch.targets[counted] = draw.integers(0, highest + 1, int(counted.sum()))
