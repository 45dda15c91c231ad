"""Model FLOPs utilisation: of what the device could compute, how much went into the model's own arithmetic.

    flops per token = 6 N + 12 L H Q T        MFU = tokens per second x flops per token / (ranks x peak)

N weights that are multiplied, L layers, H heads of Q dimensions, T tokens in a sequence: the formula of PaLM
(arXiv 2204.02311, appendix B), forward and backward; recomputed activations do not count, and attention
counts as if it were not causal. An embedding that is only looked up is not in N; a tied one multiplies as
output layer, so it is.

Peaks of GPUs are those of data sheets, dense bf16. No data sheet says what one core of a shared CPU gets, so
there a peak is measured when a rank starts: the best of a few matrix products in the trained number format,
on the rank's own threads, about 50 ms. It says how far the loop is from that, not from the silicon.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from components.training.config import Model

if TYPE_CHECKING:
    import torch

DENSE_BF16 = {"H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12}
"""FLOP/s by what the device's name contains: NVIDIA's data sheets, without sparsity, SXM where both exist."""
SIZE, TRIES = 384, 8


def flops_per_token(model: Model, *, parameters: int, vocab_size: int) -> float:
    """Of one training step, forward and backward."""
    looked_up = 0 if model.tie_embeddings else vocab_size * model.hidden_size
    multiplied = parameters - looked_up
    return 6.0 * multiplied + 12.0 * model.num_layers * model.hidden_size * model.context_length


def peak_flops(device: torch.device, precision: torch.dtype) -> float | None:
    """FLOP/s of one rank's device; None for a GPU that is not in the table, or in another format than its."""
    import torch

    if device.type == "cpu":
        return _measured(precision)
    if precision is not torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in DENSE_BF16.items() if part in name and "PCIe" not in name), None)


def _measured(precision: torch.dtype) -> float:
    """No generator is used, so that training stays what its seed says."""
    import torch

    one = torch.ones(SIZE, SIZE, dtype=precision)
    seconds = []
    for _ in range(TRIES):
        started = time.perf_counter()
        torch.mm(one, one)
        seconds.append(time.perf_counter() - started)
    return float(2 * SIZE**3 / min(seconds))
