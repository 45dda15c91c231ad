"""What the ranks' files hold, by the names that the manifest uses: fp32 masters, moments, weights.

DeepSpeed lays them out by ZeRO stage. Stage 1 and 2 leave the zeros out that fill up a master's last slice;
stage 0 writes one file for all ranks, and in fp32 its masters are the model's weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from components.checkpoints import saved_tensors
from components.checkpoints.weights import Weight
from components.errors import CheckpointCorrupt

FOLDER = "deepspeed"
BYTES_OF_A_MASTER = 4


@dataclass(frozen=True)
class Held:
    """One tensor of a rank's optimizer."""

    weight: Weight
    zeros: int = 0
    """Bytes of padding that it had in memory and has not on disk."""

    @property
    def digest(self) -> str:
        """The digest that was taken of it in memory."""
        found = xxhash.xxh3_128(self.weight.content)
        found.update(bytes(self.zeros))
        return f"xxh3:{found.hexdigest()}"


@dataclass(frozen=True)
class Partition:
    """What one file holds of the optimizer."""

    file: str
    tensors: dict[str, Held]
    """`master.0`, `exp_avg.0`, `exp_avg_sq.0`, `step.0` ...: `digests.partition` names them so."""
    has_masters: bool
    """False where the model's weights are their own masters."""


def files(folder: Path, ranks: int) -> list[Path]:
    """The file of each rank, in their order; under stage 0 the same one for all."""
    place = folder / FOLDER
    shared = place / "mp_rank_00_model_states.pt"
    found = [
        next(iter(place.glob(f"*zero_pp_rank_{rank}_mp_rank_*_optim_states.pt")), None)
        for rank in range(ranks)
    ]
    if not any(found) and shared.is_file():
        return [shared] * ranks
    if None in found:
        raise CheckpointCorrupt(f"{FOLDER}/ holds no optimizer states of rank {found.index(None)} of {ranks}")
    return [path for path in found if path is not None]


def read(path: Path) -> Partition:
    """The optimizer's tensors in one file."""
    content = saved_tensors.read(path)
    try:
        held = content.get("optimizer_state_dict") or content["optimizer"]
        inner = held.get("base_optimizer_state") or held.get("optimizer_state_dict") or held
        masters = list(_masters(held))
        tensors = dict(masters) | {
            f"{kind}.{index}": Held(value)
            for index, moments in enumerate(inner["state"].values())
            for kind, value in moments.items()
            if isinstance(value, Weight)
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{path.name} holds no optimizer as DeepSpeed lays it out: {error}") from None
    return Partition(path.name, tensors, bool(masters))


def model_weights(folder: Path) -> Iterator[tuple[str, str, Weight]]:
    """File, name and content of each weight that DeepSpeed would load; under ZeRO 3 there are none."""
    for path in sorted((folder / FOLDER).glob("*model_states.pt")):
        for name, weight in weights_in(path):
            yield path.name, name, weight


def weights_in(path: Path) -> Iterator[tuple[str, Weight]]:
    """Name and content of each weight of the model in one file; the optimizer's file has none."""
    content = saved_tensors.read(path)
    module = content.get("module") if isinstance(content, dict) else None
    for name, weight in (module or {}).items():
        if isinstance(weight, Weight) and len(weight.content):
            yield name, weight


def _masters(held: dict[str, Any]) -> Iterator[tuple[str, Held]]:
    sliced = held.get("single_partition_of_fp32_groups")
    flat = (
        sliced
        or held.get("fp32_flat_groups")
        or [one for group in held.get("fp32_groups", []) for one in group]
    )
    paddings = held.get("group_paddings", []) if sliced else []
    for index, master in enumerate(flat):
        missing = paddings[index] if index < len(paddings) else 0
        yield f"master.{index}", Held(master, missing * BYTES_OF_A_MASTER)
