"""A checkpoint in DeepSpeed's universal format, made by rank 0 for all and vouched for by the manifest.

Cutting the merged tensors back into the slices of the ranks that wrote them must give the digests that those
ranks took in memory before they saved.
"""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from components import storage
from components.checkpoints import digests, slices, universal
from components.checkpoints.layout import PRECISIONS, Layout
from components.checkpoints.manifest import Manifest
from components.checkpoints.restore import Checkpoint
from components.errors import CheckpointCorrupt, CheckpointError

EVERY = 0.05
"""Seconds between two looks for rank 0's answer: conversion may take longer than a collective may."""
logger = logging.getLogger(__name__)


class Converted(NamedTuple):
    """The universal form of a checkpoint, each tensor of which the manifest vouches for."""

    folder: Path
    step: float
    """Steps that the optimizer has taken."""
    digests: dict[str, dict[str, str]]
    """Of each parameter: `fp32`, `exp_avg`, `exp_avg_sq`, and `weight` as this job has it."""


def answer(place: Path, checkpoint: Checkpoint, was: Layout, now: Layout) -> None:
    """Rank 0: convert, or say to all why it cannot be done."""
    try:
        converted = convert(checkpoint, place.parent / "universal", was, now)
        told = {"step": converted.step, "digests": converted.digests}
    except CheckpointCorrupt as error:
        told = {"corrupt": str(error)}
    except Exception as error:
        logger.exception("%s could not be converted", checkpoint.url)
        told = {"failed": f"{checkpoint.url} could not be converted: {type(error).__name__}: {error}"}
    storage.write_text(str(place), json.dumps(told))


def heard(place: Path) -> Converted:
    """On every rank, once rank 0 is done; when it dies, the launcher ends the others."""
    while not place.exists():
        time.sleep(EVERY)
    told = storage.read_json(str(place))
    dist.barrier()  # every rank has read it: whoever raises now may remove it
    if "corrupt" in told:
        raise CheckpointCorrupt(told["corrupt"])
    if "failed" in told:
        raise CheckpointError(told["failed"])
    return Converted(place.parent / "universal", told["step"], told["digests"])


def convert(checkpoint: Checkpoint, folder: Path, was: Layout, now: Layout) -> Converted:
    """The universal form, compared with the digests of every rank that wrote the checkpoint."""
    universal.convert(checkpoint.path, folder, zero_stage=was.zero_stage)
    step = compare_with_manifest(checkpoint, folder, was)
    dtype = getattr(torch, PRECISIONS[now.precision])
    found = {}
    for name in checkpoint.manifest.tensors:
        whole = {kind: universal.read(folder, name, kind) for kind in universal.KINDS}
        found[name] = digests.of_tensors(whole | {"weight": whole["fp32"].to(dtype)})
    return Converted(folder, step, found)


def compare_with_manifest(checkpoint: Checkpoint, folder: Path, was: Layout) -> float:
    """Cut the universal form into the slices of the ranks that wrote it; the optimizer's steps.

    Their digests must be those taken in memory before saving; each master, rounded, must be its weight.
    """
    url, manifest = checkpoint.url, checkpoint.manifest
    held = slices.of_files(checkpoint.path, world_size=was.world_size, zero_stage=was.zero_stage)
    steps, counts = set(), dict.fromkeys(manifest.tensors, 0)
    for rank, saved in enumerate(held):
        found = {}
        for index, flat in enumerate(saved.flats):
            for kind in universal.KINDS:
                name = f"{'master' if kind == 'fp32' else kind}.{index}"
                padded_as = saved.tensors[index][kind] if saved.tensors else None
                found[name] = digests.of_tensor(
                    flat.of(partial(universal.read, folder, kind=kind), padded_as)
                )
            found[f"step.{index}"] = digests.of_tensor(saved.step)
            for one in flat.slices:
                counts[one.name] = counts.get(one.name, 0) + one.length
        compare(url, f"rank {rank}'s optimizer tensor", found, manifest.partitions[rank], "after conversion")
        steps.add(float(saved.step))
    if len(steps) != 1:
        raise CheckpointCorrupt(
            f"{url}: its ranks have taken {sorted(steps)} steps; use an earlier checkpoint"
        )
    _refuse_gaps(url, folder, counts, copies=was.world_size if was.zero_stage == 0 else 1)
    _compare_weights(url, folder, manifest, was)
    return steps.pop()


def compare(url: str, what: str, found: dict[str, str], wanted: dict[str, str], when: str) -> None:
    """CheckpointCorrupt with the name of the first tensor that has another digest than was taken of it."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise CheckpointCorrupt(
                f"{url}: {what} '{name}' is {found.get(name, 'missing')} {when}, "
                f"{wanted.get(name, 'nothing')} was saved; use an earlier checkpoint"
            )


def _refuse_gaps(url: str, folder: Path, counts: dict[str, int], *, copies: int) -> None:
    """Slices that leave elements out would leave them unchecked."""
    for name, count in counts.items():
        size = copies * universal.read(folder, name, "fp32").numel()
        if count != size:
            raise CheckpointCorrupt(
                f"{url}: the ranks' slices of '{name}' have {count} of {size} elements; "
                "use an earlier checkpoint"
            )


def _compare_weights(url: str, folder: Path, manifest: Manifest, was: Layout) -> None:
    dtype = getattr(torch, PRECISIONS[was.precision])
    rounded = {
        name: digests.of_tensor(universal.read(folder, name, "fp32").to(dtype)) for name in manifest.tensors
    }
    compare(url, "the master of weight", rounded, manifest.tensors, "after conversion")
