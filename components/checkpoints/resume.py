"""Putting an engine back to where a checkpoint left it, and proving that it is there."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from components import storage
from components.checkpoints import digests, layout, reshape
from components.checkpoints.conversion import compare
from components.checkpoints.layout import Layout
from components.checkpoints.restore import Checkpoint, open_checkpoint
from components.checkpoints.save import TAG, weights_of
from components.data.position import Position
from components.errors import CheckpointError


def resume(
    engine: Any, url: str, *, reads: Position | None = None, scratch: Path | None = None
) -> Checkpoint:
    """Load weights, optimizer and generators of a validated checkpoint; refuse what is not what was saved.

    Rank 0 compares every file with the manifest before any rank unpickles one. `reads` is the order of
    samples that this job would read: the checkpoint's must be the same. With as many ranks, the same ZeRO
    stage and precision as when it was written, training goes on to the last bit as if it had not stopped;
    otherwise the state is laid out anew, for which `scratch` is a folder that all ranks see, see `reshape`.
    """
    checkpoint = _vouched_for(url)
    if reads is not None:
        _same_order(checkpoint.url, checkpoint.manifest.data_position, reads)
    was, now = layout.of_manifest(checkpoint.manifest), layout.of_engine(engine)
    if was == now:
        engine.load_checkpoint(str(checkpoint.path), tag=TAG, load_lr_scheduler_states=False)
        _same_tensors(engine, checkpoint)
    else:
        if reads is None:
            _refuse_without_stream(checkpoint.url, was, now)
        reshape.restore(engine, checkpoint, scratch)
    set_random(checkpoint, dist.get_rank())
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


def _refuse_without_stream(url: str, was: Layout, now: Layout) -> None:
    """A stage that reads no token stream draws by rank: with others it would go on with other data."""
    raise CheckpointError(
        f"{url} was written by {was} and this job is {now}: what a rank of this stage draws depends on both; "
        f"pass --set profile.processes={was.world_size} --set parallelism.zero.stage={was.zero_stage} "
        f"--set training.precision={was.precision}, or start a new run"
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
    rank, url, manifest = dist.get_rank(), checkpoint.url, checkpoint.manifest
    found, what = digests.of_partition(engine), f"rank {rank}'s optimizer tensor"
    compare(url, what, found, manifest.partitions[rank], "after loading")
    weights = weights_of(engine)  # on all ranks: under ZeRO 3 it gathers
    if weights:
        compare(url, "weight", digests.of_tensors(weights), manifest.tensors, "after loading")


def set_random(checkpoint: Checkpoint, rank: int) -> None:
    """The generators of the rank of this number; a rank that is new gets a start of its own, always the same.

    Pre-training does not depend on it: the model has no dropout, and samples follow from seed and step.
    """
    if rank >= checkpoint.manifest.world_size:
        _seed_new(checkpoint, rank)
        return
    state = storage.read_json(str(checkpoint.path / "random" / f"rank-{rank:05d}.json"))
    torch.set_rng_state(_bytes(state["torch"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _seed_new(checkpoint: Checkpoint, rank: int) -> None:
    """From the run's seed, the step and the rank's number."""
    known = f"{checkpoint.manifest.facts.get('seed', 0)} {checkpoint.manifest.step} {rank}"
    seed = int.from_bytes(hashlib.sha256(known.encode()).digest()[:8], "big")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
