"""Laying a checkpoint's state out anew: for another number of ranks, another ZeRO stage, another precision.

Rank 0 converts the checkpoint to DeepSpeed's universal format; every rank takes its slices from there.

DeepSpeed's own `load_universal_checkpoint` is not used. In 0.19.8 it has no way into ZeRO 0, its ZeRO 3 does
not read what was converted from ZeRO 1 and 2, gives every group of parameters the weight decay of the first,
and its setters of whole ZeRO 3 parameters fail where a parameter does not divide over the ranks. Issues 2898,
3810, 5405 and 7546 there tell of weights that were silently not loaded. Its public getters, which gather from
all ranks, are what the result is compared with.

Pattern: Reshaped Restore
Problem: optimizer state is cut for the ranks that wrote it, and a machine less makes a checkpoint useless.
Answer: merge it, cut the merged state into its old slices again and compare these with the digests taken
before saving, cut it into the new slices, gather and compare once more.
Trade-off: for a while the state lies in the scratch folder twice, and each of its bytes is read three times.

What carries over: weights, masters, moments, the optimizer's steps. Learning rate, weight decay, clipping are
functions of the step and of the run's settings. Generators: see `resume`.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from components.checkpoints import conversion, digests, layout, slices, universal
from components.checkpoints.conversion import Converted
from components.checkpoints.restore import Checkpoint
from components.errors import CheckpointCorrupt, CheckpointError

MOMENTS = universal.KINDS[1:]
logger = logging.getLogger(__name__)


def restore(engine: Any, checkpoint: Checkpoint, scratch: Path | None = None) -> None:
    """Put a freshly made engine to where a checkpoint of another layout was; all ranks together.

    `scratch` is a folder that all ranks see. CheckpointCorrupt names the first tensor that is not what it
    was when it was saved, after the conversion or after loading.
    """
    was, now = layout.of_manifest(checkpoint.manifest), layout.of_engine(engine)
    answer = _agreed_place(scratch)
    try:
        if dist.get_rank() == 0:
            logger.info("%s was written by %s and goes on as %s", checkpoint.url, was, now)
            conversion.answer(answer, checkpoint, was, now)
        converted = conversion.heard(answer)
        if differs := _agreed(another_model(engine, converted)):
            raise CheckpointError(
                f"{checkpoint.url} is of another model: {differs}; go on with the model that the run was "
                "started with, or start a new run"
            )
        _fill(engine, converted)
        if differs := _agreed(_first_difference(engine, converted)):
            raise CheckpointCorrupt(f"{checkpoint.url}: {differs}; use an earlier checkpoint")
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(answer.parent, ignore_errors=True)
    engine.global_steps = checkpoint.manifest.step
    engine.global_samples = checkpoint.manifest.step * engine.train_batch_size()


def _agreed_place(scratch: Path | None) -> Path:
    """Where rank 0 will answer: a fresh folder, so that no earlier attempt's answer is taken for it."""
    made: list[Any] = [None]
    if dist.get_rank() == 0:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        made = [tempfile.mkdtemp(prefix="reshape-", dir=scratch)]
    dist.broadcast_object_list(made)
    return Path(made[0]) / "answer.json"


def another_model(engine: Any, converted: Converted) -> str | None:
    """The first parameter whose name and size are not both of this job and of the checkpoint."""
    mine = {name: getattr(one, "ds_numel", one.numel()) for one, name in engine.param_names.items()}
    yours = {name: universal.read(converted.folder, name, "fp32").numel() for name in converted.digests}
    for name in sorted(mine.keys() | yours.keys()):
        if mine.get(name) != yours.get(name):
            return f"'{name}' has {yours.get(name, 0)} elements there and {mine.get(name, 0)} here"
    return None


def _fill(engine: Any, converted: Converted) -> None:
    """This rank's masters, moments and steps; then the weights, which follow from the masters."""
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    if hasattr(optimizer, "checkpoint_event_prologue"):
        optimizer.checkpoint_event_prologue()
    with torch.no_grad():
        for master, flat in slices.of_engine(engine):
            device = master.device
            for kind in universal.KINDS:
                values = flat.of(partial(universal.read, converted.folder, kind=kind)).reshape(master.shape)
                if kind == "fp32":
                    master.copy_(values)
                    inner.state[master] = {"step": torch.tensor(converted.step, dtype=torch.float32)}
                else:
                    inner.state[master][kind] = values.to(device)
        _round_to_weights(engine)
    if hasattr(optimizer, "checkpoint_event_epilogue"):
        optimizer.checkpoint_event_epilogue()


def _round_to_weights(engine: Any) -> None:
    """Masters into weights, as DeepSpeed does at the end of a step; without ZeRO and in fp32 they are one."""
    stage, optimizer = int(engine.zero_optimization_stage()), engine.optimizer
    if stage == 3:
        for group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
    elif stage > 0:
        optimizer.update_lp_params()
        optimizer._lazy_init_hp_params_optimizer_state()  # the getters read moments through it
    else:
        for parameter, master in slices.masters_of_all(engine):
            if parameter is not master:
                parameter.copy_(master)


def _first_difference(engine: Any, converted: Converted) -> str | None:
    """What this rank finds wrong; it looks at every weight and at its share of masters and moments."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    problem = None
    for number, (name, kind, tensor) in enumerate(_gathered(engine)):
        if problem is None and (kind == "weight" or number % ranks == rank):
            found = digests.of_tensor(tensor)
            wanted = converted.digests.get(name, {}).get(kind)
            if found != wanted:
                problem = f"{kind} of '{name}' is {found} after loading, {wanted} was converted"
    return problem


def _gathered(engine: Any) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Every parameter whole, and its weight, on every rank, through DeepSpeed's own getters."""
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    stage = int(engine.zero_optimization_stage())
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    alone = dict(slices.masters_of_all(engine)) if stage == 0 else {}
    for parameter, name in engine.param_names.items():
        master = alone[parameter] if alone else safe_get_full_fp32_param(parameter)
        yield name, "fp32", master
        for kind in MOMENTS:
            yield (
                name,
                kind,
                inner.state[master][kind] if alone else safe_get_full_optimizer_state(parameter, kind),
            )
        with GatheredParameters([parameter], enabled=stage == 3):
            yield name, "weight", parameter


def _agreed(problem: str | None) -> str | None:
    """The first problem that any rank has, on every rank."""
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, problem)
    return next((one for one in found if one is not None), None)
