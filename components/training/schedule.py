"""The learning rate as a function of the step alone, so that a resumed job needs no scheduler state."""

from __future__ import annotations

import math
from typing import Literal

Shape = Literal["cosine", "linear", "constant"]


def learning_rate(
    step: int, *, steps: int, peak: float, warmup: int = 0, shape: Shape = "cosine", floor: float = 0.1
) -> float:
    """Rate of step 1..`steps`: up to `peak` within `warmup` steps, then down to `floor` times the peak."""
    if step <= warmup:
        return peak * step / warmup
    if shape == "constant":
        return peak
    done = (step - warmup) / max(1, steps - warmup)
    left = (1 + math.cos(math.pi * done)) / 2 if shape == "cosine" else 1 - done
    return peak * (floor + (1 - floor) * left)
