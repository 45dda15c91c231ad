"""Data parallelism with sharded state: each rank keeps a slice of what the optimizer needs.

When to use: always, before any other axis. What it costs: stage 1 and 2 move as many bytes as plain data
parallelism, stage 3 about half as many again. Reference: Rajbhandari et al., "ZeRO", SC'20.

Pattern: ZeRO Sharding
Problem: optimizer state is the largest part of a model's memory and every replica holds all of it.
Answer: split it over the data-parallel ranks (stage 1), then gradients (2), then weights (3).
Trade-off: memory falls with the number of ranks, traffic and the checkpoint's dependence on the layout rise.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How much of the state is sharded."""

    stage: int = Field(default=2, ge=0, le=3)
    """ZeRO stage: 1 shards optimizer state, 2 adds gradients, 3 adds weights."""


def degree(config: Config) -> int:
    """Processes that one copy of the model needs beyond data parallelism."""
    return 1


def deepspeed(config: Config) -> dict[str, Any]:
    """The part of a DeepSpeed configuration that this strategy owns."""
    return {"zero_optimization": {"stage": config.stage}}
