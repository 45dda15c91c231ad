"""The loss of a model on a fixed batch of held-out tokens: one way to compute it, for trainers and for gates.

Run as a program it is the process that never saw the trainer: it loads a checkpoint's weights and prints the
loss as JSON. `python -m components.training.evaluate CHECKPOINT SHARDS`
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray

from components.checkpoints import manifest
from components.checkpoints.manifest import HeldOut
from components.training.model import PRECISIONS

ROWS = 8
"""Sequences of one forward pass, whatever the number of ranks: another shape would round differently."""


def token_losses(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Nats of every next token, [rows, length]; `tokens` is [rows, length + 1]."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    targets = tokens[:, 1:]
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def held_out_loss(model: Any, tokens: NDArray[np.int64], device: torch.device) -> float:
    """Mean nats a token. Ranks share the work, each on whole pieces, whose sums are added in one order: the
    number of ranks does not change a bit of it."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    sums = torch.zeros(-(-len(tokens) // ROWS), dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for place, piece, weight in _pieces(tokens, rank, ranks):
            sums[place] += weight * _nats(model, piece, device)
    model.train()
    if ranks > 1:
        shared = sums.to(device)
        dist.all_reduce(shared)
        sums = shared.cpu()
    return float(sum(sums.tolist())) / tokens[:, 1:].size


def _nats(model: Any, piece: NDArray[np.int64], device: torch.device) -> float:
    losses = token_losses(model, torch.from_numpy(piece).to(device))
    return float(losses.double().sum().item())


def _pieces(tokens: NDArray[np.int64], rank: int, ranks: int) -> Iterator[tuple[int, NDArray[np.int64], int]]:
    """Pieces of this rank, their place first. Every rank gets as many, since sharded weights are gathered by
    all at once; what is handed out twice has weight 0."""
    pieces = [tokens[start : start + ROWS] for start in range(0, len(tokens), ROWS)]
    for turn in range(rank, -(-len(pieces) // ranks) * ranks, ranks):
        yield turn % len(pieces), pieces[turn % len(pieces)], int(turn < len(pieces))


def of_checkpoint(checkpoint: Path, shards: str) -> float:
    """The held-out loss of saved weights, in the number format and on the batch that their manifest names."""
    import transformers

    from components.data.stream import fixed_batch

    held_out = manifest.read(checkpoint).held_out
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=PRECISIONS[held_out.precision]
    )
    tokens = fixed_batch(shards, held_out.sequences, held_out.sequence_length)
    return held_out_loss(model, tokens, torch.device("cpu"))


def measured(loss: float, *, sequences: int, sequence_length: int, precision: str, device: str) -> HeldOut:
    """A loss with everything that is needed to compute it again."""
    return HeldOut(
        loss=loss,
        sequences=sequences,
        sequence_length=sequence_length,
        precision=precision,
        device=device,
        threads=torch.get_num_threads(),
        arithmetic=arithmetic(device),
    )


def arithmetic(device: str) -> str:
    """What rounds: torch's version and the processor."""
    if device == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name()}"
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kind = names[0] if names else platform.processor() or platform.machine()
    return f"torch {torch.__version__}, {kind}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> None:
    """Print the loss of a checkpoint on its fixed batch."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    checkpoint, shards = sys.argv[1:3]
    loss = of_checkpoint(Path(checkpoint), shards)
    sys.stdout.write(json.dumps({"held_out_loss": loss, "arithmetic": arithmetic("cpu")}) + "\n")


if __name__ == "__main__":
    main()
