"""Digests of what is in memory: of the model's weights, and of the fp32 state that one rank holds."""

from __future__ import annotations

from typing import Any

import torch

from components.checkpoints.weights import digest_of_bytes


def of_tensor(tensor: torch.Tensor) -> str:
    """The digest of a tensor's bytes, wherever it lies."""
    plain = tensor.detach().contiguous().cpu().reshape(-1)
    return digest_of_bytes(memoryview(plain.view(torch.uint8).numpy()))


def of_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """Digests by name."""
    return {name: of_tensor(tensor) for name, tensor in tensors.items()}


def partition(engine: Any) -> dict[str, torch.Tensor]:
    """The fp32 masters and the optimizer's moments that this rank holds, by name."""
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    found: dict[str, torch.Tensor] = {}
    for index, (master, moments) in enumerate(optimizer.state.items()):
        found[f"master.{index}"] = master
        found |= {f"{name}.{index}": value for name, value in moments.items() if torch.is_tensor(value)}
    return found


def of_partition(engine: Any) -> dict[str, str]:
    """Their digests."""
    return of_tensors(partition(engine))
