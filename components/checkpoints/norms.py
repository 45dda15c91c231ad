"""L2 norms of a checkpoint on disk: of each weight, and of the optimizer's moments over all ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from components.checkpoints import partitions, weights
from components.checkpoints.weights import Weight

AT_ONCE = 1 << 20
"""Elements that are squared in fp32 before their sum is carried on in fp64."""
MOMENTS = ("exp_avg", "exp_avg_sq")


def of_weights(path: Path) -> dict[str, float]:
    """By the tensor's name."""
    return {weight.name: math.sqrt(sum_of_squares(weight)) for weight in weights.read(path)}


def of_moments(folder: Path, ranks: int) -> dict[str, float]:
    """By name, `exp_avg.0`. The slices of all ranks are one vector: the norm is the same for any number."""
    sums: dict[str, float] = defaultdict(float)
    for path in dict.fromkeys(partitions.files(folder, ranks)):
        for name, held in partitions.read(path).tensors.items():
            if name.rpartition(".")[0] in MOMENTS:
                sums[name] += sum_of_squares(held.weight)
    return {name: math.sqrt(total) for name, total in sums.items()}


def total(norms: dict[str, float]) -> float:
    """The norm of all of them as one vector."""
    return math.sqrt(sum(norm * norm for norm in norms.values()))


def sum_of_squares(weight: Weight) -> float:
    """NaN or infinite where an element is."""
    bits = np.frombuffer(weight.content, dtype={"BF16": "<u2", "F16": "<f2", "F32": "<f4"}[weight.dtype])
    return sum(
        _squared(bits[start : start + AT_ONCE], weight.dtype) for start in range(0, len(bits), AT_ONCE)
    )


def _squared(bits: np.ndarray, dtype: str) -> float:
    values = (bits.astype("<u4") << 16).view("<f4") if dtype == "BF16" else bits.astype("<f4", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.dot(values, values))
