"""What a rank says of itself with every step: pace, utilisation, memory, where the time went.

`tokens` and `tokens_per_second` are those of the whole job, by this rank's clock; `mfu` is this rank's share
of them over the peak of its own device, null where the peak is not known. `memory_bytes` is what the process
holds now; `device_memory_bytes` the most that torch held on its GPU.

Pattern: Step Readout
Problem: per-rank figures that nobody wrote down while the job ran cannot be had afterwards.
Answer: every rank writes every figure with every step, one line, from clocks and counters that it has anyway.
Trade-off: 500 bytes a step and rank on disk; a scraper outside, not the rank, makes metrics of them.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from components.training.config import Model
from components.training.model import PRECISIONS
from components.training.phases import Phases
from components.training.utilisation import flops_per_token, peak_flops

STATM = Path("/proc/self/statm")


class Readout:
    """Of one rank; made when its model and device are there."""

    def __init__(
        self,
        phases: Phases,
        model: Model,
        *,
        parameters: int,
        vocab_size: int,
        device: torch.device,
        precision: str,
    ) -> None:
        self.phases, self.device = phases, device
        peak = peak_flops(device, PRECISIONS[precision])
        flops = flops_per_token(model, parameters=parameters, vocab_size=vocab_size)
        self._device_seconds_per_token = flops / phases.rank.world_size / peak if peak else None

    def of_step(self, tokens: int) -> dict[str, Any]:
        """Fields of the event of the step that has just been done, on that many tokens over all ranks."""
        rate = tokens / self.phases.since_begin
        ideal = self._device_seconds_per_token
        told = {
            "tokens": tokens,
            "tokens_per_second": round(rate, 1),
            "mfu": round(rate * ideal, 6) if ideal is not None else None,
            "memory_bytes": resident_bytes(),
            **self.phases.spent(),
        }
        if self.device.type == "cuda":
            told["device_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        return told


def resident_bytes() -> int:
    """Memory of this process that is in use; where the system has no such file, the most that ever was."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most memory that this process ever had in use."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
