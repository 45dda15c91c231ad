"""DeepSpeed, started the same way by every loop: on a CPU over gloo, on GPUs over NCCL.

engine.join("cpu", timeout_seconds=900)
trained = engine.start(model, rate=6e-3, batch_size_per_rank=4, precision="bf16", parallelism={...})
trained.backward(loss); engine.step(trained, rate=...)
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from components.plugins import Config, load
from components.training.communication import CLOCK

BETAS = (0.9, 0.95)


def join(device: str, timeout_seconds: float) -> torch.device:
    """Join the other ranks; a collective that waits longer than the timeout is an error, not a hang."""
    deepspeed = _deepspeed(device)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    deepspeed.init_distributed(
        dist_backend="nccl" if device == "cuda" else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=timedelta(seconds=timeout_seconds),
    )
    if device == "cpu":
        CLOCK.start()
    return torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)


def leave() -> None:
    """Part from the other ranks in order, once all have come to the end."""
    dist.barrier()
    dist.destroy_process_group()


def seed_everything(seed: int) -> None:
    """Every generator of this process, to the same start on every rank."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def start(
    model: torch.nn.Module,
    *,
    rate: float,
    batch_size_per_rank: int,
    precision: str,
    parallelism: Mapping[str, Config],
    weight_decay: float = 0.1,
    gradient_clip: float = 1.0,
    accumulate: int = 1,
    timeout_seconds: float = 900.0,
) -> Any:
    """A DeepSpeed engine around `model`: AdamW, fp32 masters; `batch_size_per_rank` is one micro-batch."""
    import deepspeed

    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch_size_per_rank,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": gradient_clip,
        "bf16": {"enabled": precision == "bf16"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": rate, "betas": BETAS, "weight_decay": weight_decay, "torch_adam": True},
        },
        "steps_per_print": 2**31,
    }
    for name, config in parallelism.items():
        settings = _merged(settings, load("components.parallelism", name).deepspeed(config))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=_decayed_and_not(model, weight_decay), config=settings
    )
    for name, buffer in model.named_buffers():  # DeepSpeed has cast these too; see model.with_parameters_in
        buffer.data = buffers[name].to(buffer.device)
    _bound_every_group(timeout_seconds)
    return engine


def step(engine: Any, *, rate: float) -> float:
    """Apply the gradients at this learning rate; their norm before clipping."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate
    engine.step()
    return float(engine.get_global_grad_norm() or 0.0)


def mean_over_ranks(value: float) -> float:
    """The mean of one number over all ranks."""
    (total,) = sums_over_ranks(value)
    return total / int(dist.get_world_size())


def sums_over_ranks(*values: float) -> list[float]:
    """Each number summed over all ranks, in one collective."""
    held = torch.tensor(values, dtype=torch.float64)
    if dist.get_backend() == "nccl":
        held = held.cuda()
    dist.all_reduce(held)
    sums: list[float] = held.tolist()
    return sums


def parallelism_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Config]:
    """The strategies of a job's JSON settings, each as the `Config` of its file."""
    return {
        name: load("components.parallelism", name).Config.model_validate(values)
        for name, values in settings.items()
    }


def _deepspeed(device: str) -> Any:
    """DeepSpeed for this device, without chatter.

    On a CPU its shared-memory collectives are left out: they are compiled with g++ when the job starts, they
    spin, and neither gloo's timeout nor the Flight Recorder sees them.
    """
    os.environ["DS_ACCELERATOR"] = device
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed 0.19 calls a collective by the name that torch 2.13 has replaced, on every step.
    warnings.filterwarnings("ignore", message=r"`torch\.distributed\..*is deprecated", category=FutureWarning)
    if device == "cpu":
        deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def _decayed_and_not(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; gains of norms do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _merged(base: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of several strategies as one tree; where both speak, the later one holds."""
    merged = dict(base)
    for key, value in more.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _bound_every_group(timeout_seconds: float) -> None:
    """DeepSpeed makes groups of its own, and those wait 30 minutes whatever the first group was told."""
    from torch.distributed import distributed_c10d

    for group in distributed_c10d._world.pg_map:
        distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_seconds), group)
