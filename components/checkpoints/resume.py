"""Putting an engine back to where a checkpoint left it, and proving that it is there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from components import storage
from components.checkpoints import digests
from components.checkpoints.manifest import Manifest
from components.checkpoints.restore import Checkpoint, open_checkpoint
from components.checkpoints.save import TAG, weights_of
from components.data.position import Position
from components.errors import CheckpointCorrupt, CheckpointError


def resume(engine: Any, url: str, *, reads: Position | None = None) -> Checkpoint:
    """Load weights, optimizer and generators of a validated checkpoint; refuse what is not what was saved.

    Rank 0 compares every file with the manifest before any rank unpickles one. `reads` is the order of
    samples that this job would read: the checkpoint's must be the same.
    """
    checkpoint = _vouched_for(url)
    _same_ranks(checkpoint.url, checkpoint.manifest)
    if reads is not None:
        _same_order(checkpoint.url, checkpoint.manifest.data_position, reads)
    engine.load_checkpoint(str(checkpoint.path), tag=TAG, load_lr_scheduler_states=False)
    _same_tensors(engine, checkpoint)
    _set_random(checkpoint.path / "random" / f"rank-{dist.get_rank():05d}.json")
    return checkpoint


def _vouched_for(url: str) -> Checkpoint:
    """Rank 0's answer, to all: the checkpoint, or the same error everywhere."""
    answer: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            answer = [open_checkpoint(url)]
        except CheckpointError as error:
            answer = [error]
    dist.broadcast_object_list(answer)
    if isinstance(answer[0], CheckpointError):
        raise answer[0]
    checkpoint: Checkpoint = answer[0]
    return checkpoint


def _same_ranks(url: str, manifest: Manifest) -> None:
    if manifest.world_size != dist.get_world_size():
        raise CheckpointError(
            f"{url} was written by {manifest.world_size} ranks and this job has {dist.get_world_size()}: "
            "each rank holds its own slice of the optimizer; "
            f"pass --set profile.processes={manifest.world_size}, or start a new run"
        )


def _same_order(url: str, was: Position | None, reads: Position) -> None:
    if was is None:
        raise CheckpointError(
            f"{url} does not say where it was in a token stream: it is not of pre-training; "
            "pass a checkpoint of this stage, or start a new run"
        )
    was.refuse_another(reads)


def _same_tensors(engine: Any, checkpoint: Checkpoint) -> None:
    """Every tensor has the digest that was taken of it before it was written."""
    rank = dist.get_rank()
    found = digests.of_partition(engine)
    _compare(checkpoint.url, f"rank {rank}'s optimizer tensor", found, checkpoint.manifest.partitions[rank])
    weights = weights_of(engine)  # on all ranks: under ZeRO 3 it gathers
    if weights:
        _compare(checkpoint.url, "weight", digests.of_tensors(weights), checkpoint.manifest.tensors)


def _compare(url: str, what: str, found: dict[str, str], wanted: dict[str, str]) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise CheckpointCorrupt(
                f"{url}: {what} '{name}' is {found.get(name, 'missing')} after loading, "
                f"{wanted.get(name, 'nothing')} was saved; use an earlier checkpoint"
            )


def _set_random(path: Path) -> None:
    state = storage.read_json(str(path))
    torch.set_rng_state(_bytes(state["torch"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
