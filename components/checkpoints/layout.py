"""How training state lies over ranks: decides whether a checkpoint loads as it is or is laid out anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components.checkpoints.manifest import Manifest
from components.parallelism import zero

PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
"""What torch calls them."""


@dataclass(frozen=True)
class Layout:
    """Two states with the same layout are made of the same files."""

    world_size: int
    zero_stage: int
    precision: str
    """`bf16` or `fp32`: weights and activations; masters and moments are fp32 in both."""

    def __str__(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{ranks} under ZeRO {self.zero_stage} in {self.precision}"


def of_manifest(manifest: Manifest) -> Layout:
    """The layout that a checkpoint was written in."""
    chosen = manifest.facts.get("parallelism", {}).get("zero", {"stage": 0})
    stage = zero.Config.model_validate(chosen).stage
    return Layout(manifest.world_size, stage, manifest.held_out.precision)


def of_engine(engine: Any) -> Layout:
    """The layout of this job."""
    import torch.distributed as dist

    precision = "bf16" if engine.bfloat16_enabled() else "fp32"
    return Layout(dist.get_world_size(), int(engine.zero_optimization_stage()), precision)
