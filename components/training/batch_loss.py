"""The loss of a packed batch: which tokens see which, which targets count, and how much each rank weighs.

Ranks average their gradients as if all had equally many targets. Where documents are masked, padded or
dropped they have not, and a target on a rank with few would weigh more than one on a rank with many; then
each rank's sum is divided by its even share of all targets instead of by its own count.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from components.data.packing import Config as Packing
from components.data.stream import IGNORED, Batch


def batch_losses(model: Any, batch: Batch, device: torch.device, packing: Packing) -> torch.Tensor:
    """Nats of every target, [rows, length]; 0 where a target does not count."""
    inputs, targets = (torch.from_numpy(array).to(device) for array in (batch.inputs, batch.targets))
    seen = document_view(batch, device) if packing.mask_documents else {}
    logits = model(input_ids=inputs, use_cache=False, **seen).logits
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return losses.view_as(targets)


def document_view(batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
    """What makes a model treat each document of a row as if it stood alone.

    `attention_mask` is [rows, 1, length, length], true where a token (third axis) sees another (fourth).
    Padding sees padding, since a token that sees nothing has no attention at all but NaN.
    """
    documents = torch.from_numpy(batch.documents).to(device)
    length = documents.shape[1]
    past = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    same = documents[:, :, None] == documents[:, None, :]
    return {
        "attention_mask": (same & past)[:, None],
        "position_ids": torch.from_numpy(batch.positions).to(device),
    }


def weighted(losses: torch.Tensor, *, world_size: int, targets: float) -> torch.Tensor:
    """This rank's loss such that the mean over ranks is the mean over all `targets` of the global batch."""
    return losses.sum() * (world_size / max(targets, 1))
