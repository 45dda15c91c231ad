"""The files of one rank: digests of its copied state first, then the files, then a report to rank 0.

Reports are files beside the staged folder, not messages: training uses the collectives meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from components import contents, storage
from components.checkpoints import digests, weights
from components.checkpoints.hashed_file import HashedFile
from components.checkpoints.snapshot import Snapshot
from components.contents import Entry
from components.errors import CheckpointCorrupt

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
WEIGHTS = "model.safetensors"
Reached = Callable[[str], None]
"""Told of each point that a save has come to, for drills that kill it there."""


class Report(BaseModel):
    """What a rank has written, or why it could not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    error: str = ""
    files: dict[str, Entry] = {}
    partition: dict[str, str] = {}
    tensors: dict[str, str] = {}
    seconds: float = 0.0
    """From the copy to the last flush."""
    seconds_hashing: float = 0.0
    """Of them, those in which nothing else was done."""


def write(
    snapshot: Snapshot, staged: Path, model: Path, *, rank: int, read_back: bool, reached: Reached
) -> Report:
    """Write what one rank holds; `model` is the folder with its configuration and tokenizer, for rank 0."""
    started, cpu = time.perf_counter(), time.thread_time()
    partition, tensors = digests.of_tensors(snapshot.partition), digests.of_tensors(snapshot.weights)
    hashing = time.thread_time() - cpu
    reached("digested")
    files: dict[str, Entry] = {}
    for name, state in snapshot.states.items():
        with HashedFile(_place(staged, name)) as file:
            torch.save(state, file)
        if read_back:
            file.read_back()
        files[name] = file.entry
        hashing += file.seconds_hashing
        reached(f"wrote {name}")
    name = f"random/rank-{rank:05d}.json"
    files[name] = _small(_place(staged, name), json.dumps(snapshot.random).encode())
    if rank == 0:
        files |= _model(snapshot, staged, model)
        cpu = time.thread_time()
        files[WEIGHTS] = _weights(staged / WEIGHTS, tensors)
        hashing += time.thread_time() - cpu
        reached(f"wrote {WEIGHTS}")
    return Report(
        rank=rank,
        files=files,
        partition=partition,
        tensors=tensors,
        seconds=time.perf_counter() - started,
        seconds_hashing=hashing,
    )


def drop(snapshot: Snapshot, staged: Path, *, rank: int) -> None:
    """Remove what one rank has written, which nobody will use."""
    for name in (*snapshot.states, *([WEIGHTS] if rank == 0 else [])):
        (staged / name).unlink(missing_ok=True)


def tell(report: Report, staged: Path) -> None:
    """Let rank 0 know.

    Rank 0 takes the folder away once it has read all reports, perhaps while the last one is being flushed.
    """
    folder = reports_of(staged)
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        storage.write_text(str(folder / f"{report.rank:05d}.json"), report.model_dump_json())


def told(staged: Path, ranks: int) -> list[Report] | None:
    """Every rank's report; None while one is missing, and the failed ones alone as soon as there are any."""
    places = [reports_of(staged) / f"{rank:05d}.json" for rank in range(ranks)]
    found = [Report.model_validate_json(place.read_bytes()) for place in places if place.exists()]
    if failed := [report for report in found if report.error]:
        return failed
    return found if len(found) == ranks else None


def reports_of(staged: Path) -> Path:
    """Where ranks report on a staged checkpoint."""
    return staged.with_suffix(".reports")


def _model(snapshot: Snapshot, staged: Path, model: Path) -> dict[str, Entry]:
    """The model as transformers and vLLM load it, but for its weights, which are flushed here."""
    from safetensors.torch import save_file

    save_file(snapshot.weights, staged / WEIGHTS, metadata={"format": "pt"})
    names = [*TOKENIZER, "config.json", "generation_config.json"]
    return {name: _small(staged / name, (model / name).read_bytes()) for name in names}


def _weights(path: Path, wanted: dict[str, str]) -> Entry:
    """The entry of the weights' file, whose tensors on the device are those in memory."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for found in weights.read(path):
        if wanted.get(found.name) != found.digest:
            raise CheckpointCorrupt(
                f"{path.name}: tensor '{found.name}' reads back otherwise than it was in memory; "
                "the device is at fault; look at its log before saving there again"
            )
    return contents.entry(path)


def _small(path: Path, content: bytes) -> Entry:
    with HashedFile(path) as file:
        file.write(content)
    return file.entry


def _place(staged: Path, name: str) -> Path:
    path = staged / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def sweep(scratch: Path) -> None:
    """Remove what attempts that died while saving have left."""
    for left in (*scratch.glob("step-*.partial"), *scratch.glob("step-*.reports")):
        shutil.rmtree(left)
