"""Two ranks hold a real model under DeepSpeed and save it, each way in turn: a torchrun target.

Each round every way saves the same engine once. What training waits for is the stall; the total ends when the
checkpoint may be used. Files go to one folder that is emptied before each save, and dirty pages are flushed
then, so no way pays for another's.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from components.checkpoints import digests
from components.checkpoints.config import Config
from components.checkpoints.manifest import HeldOut, Manifest
from components.checkpoints.save import Saver
from components.checkpoints.snapshot import weights_of
from components.jobs import this_rank
from components.training import engine as engines
from components.training import model as models
from components.training.config import Model

TOKENS = 64
Seconds = dict[str, float]
Way = Callable[[Any, Path, int], Seconds]


def deepspeed(engine: Any, folder: Path, number: int) -> Seconds:
    """DeepSpeed's own save, which flushes nothing and checks nothing."""
    started = time.perf_counter()
    engine.save_checkpoint(str(folder), tag=f"step{number}")
    spent = time.perf_counter() - started
    return {"stalled": spent, "total": spent}


def dcp(engine: Any, folder: Path, number: int) -> Seconds:
    """torch's distributed checkpoint; the same tensors."""
    from torch.distributed import checkpoint

    started = time.perf_counter()
    checkpoint.save(_tensors(engine), checkpoint_id=str(folder))
    spent = time.perf_counter() - started
    return {"stalled": spent, "total": spent}


def dcp_async(engine: Any, folder: Path, number: int) -> Seconds:
    """torch's distributed checkpoint, written by a thread."""
    from torch.distributed import checkpoint

    started = time.perf_counter()
    future = checkpoint.async_save(_tensors(engine), checkpoint_id=str(folder))
    stalled = time.perf_counter() - started
    future.result()
    return {"stalled": stalled, "total": time.perf_counter() - started}


class Ours:
    """The saver of training, as a job uses it."""

    def __init__(self, engine: Any, folder: Path, tokenizer: Path) -> None:
        self.folder = folder
        self.saver = Saver(
            engine, folder=str(folder), scratch=folder / "scratch", tokenizer=tokenizer, config=Config()
        )

    def __call__(self, engine: Any, folder: Path, number: int) -> Seconds:
        """Save, and wait for the name only to measure it."""
        alone = _step(engine)
        self.saver.save(engine, _draft(number))
        beside = _step(engine)  # what is not copied by its end, it waits for
        (saved,) = self.saver.close()
        return {
            "stalled": saved.stalled,
            "total": saved.seconds,
            "hashing": saved.seconds_hashing,
            "slowed": beside - alone,
        }


def main() -> None:
    """As `settings.json` of the job's folder says: model, rounds, place."""
    rank = this_rank()
    settings, place = rank.settings, Path(rank.settings["place"])
    engines.join("cpu", 600)
    engines.seed_everything(0)
    model = models.build(Model.model_validate(settings["model"]), settings["vocabulary"], torch.bfloat16)
    engine = engines.start(
        model,
        rate=1e-3,
        batch_size_per_rank=1,
        precision="bf16",
        parallelism=engines.parallelism_of({"zero": {"stage": 2}}),
        timeout_seconds=600,
    )
    _step(engine)  # from now on there are moments
    ways: dict[str, Way] = {
        "deepspeed": deepspeed,
        "dcp": dcp,
        "dcp_async": dcp_async,
        "stanchion": Ours(engine, place / "stanchion", Path(settings["tokenizer"])),
    }
    rounds = [
        {name: _measured(way, engine, place / name, number) for name, way in ways.items()}
        for number in range(settings["rounds"])
    ]
    held = sum(tensor.nbytes for tensor in digests.partition(engine).values())
    weights = sum(tensor.nbytes for tensor in weights_of(engine).values())
    engines.leave()
    rank.finish(
        {
            "rounds": rounds,
            "parameters": models.parameters(model),
            "bytes": held * rank.world_size + weights,
            "world_size": rank.world_size,
        }
    )


def _measured(way: Way, engine: Any, folder: Path, number: int) -> Seconds:
    if dist.get_rank() == 0:
        for left in folder.glob("step*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        os.sync()
    dist.barrier()
    found = way(engine, folder, number)
    dist.barrier()
    return found


def _step(engine: Any) -> float:
    started = time.perf_counter()
    ids = torch.zeros((1, TOKENS), dtype=torch.long)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engines.step(engine, rate=1e-3)
    return time.perf_counter() - started


def _tensors(engine: Any) -> dict[str, Any]:
    """What a checkpoint holds; optimizer slices by rank, since each holds its own."""
    rank = dist.get_rank()
    slices = {f"{name}.{rank}": held for name, held in digests.partition(engine).items()}
    return {"weights": weights_of(engine), "optimizer": slices}


def _draft(number: int) -> Manifest:
    held_out = HeldOut(loss=1.0, sequences=1, sequence_length=1, precision="bf16", device="cpu", threads=1)
    return Manifest(
        stage="benchmark",
        step=number,
        world_size=dist.get_world_size(),
        held_out=held_out,
        shards="",
        shards_digest="",
        config_digest="",
    )


if __name__ == "__main__":
    main()
