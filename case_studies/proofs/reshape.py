"""Training goes on with other ranks and another ZeRO stage: losses within 1e-6, no sample twice or left out.

A run of two ranks under ZeRO 1 is taken up at a quarter of its way by one rank, at half by four, at three
quarters by two again; and at a quarter by two ranks under ZeRO 3. Every leg is a real job, which restores a
checkpoint of the leg before and trains to the end. Compared with the run that nobody interrupted: the loss of
every step; and which rows of tokens the ranks were fed, as a witness in every rank wrote them down, with what
one process reads.

The bar is for fp32. Ranks add up gradients in another order than one rank does, and bf16 keeps 8 bits of each
of them: there, two runs that were never interrupted differ by as much as their numbers of ranks make them.
That difference is measured beside each chain, in both precisions: no restore could be closer than it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from case_studies import _witnessed_train
from case_studies.proofs import _data
from components.checkpoints import manifest, state
from components.data.reader import Reader
from components.data.stream import TokenStream
from components.jobs import Job
from components.launchers import local
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.training.config import Model
from components.training.curve import by_step

TITLE = "Two ranks become one, four, two"
BAR = 1e-6
MODEL = Model(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=160, context_length=64)
BATCH_SIZE = 8
ONCE = Limits(max_restarts=0)


class Leg(NamedTuple):
    """A job: its layout, and the share of the run's steps at which it takes over."""

    ranks: int
    stage: int
    start: float
    resumes: str | None = None
    """The leg whose checkpoint it takes up."""


LEGS = {
    "2 ranks, ZeRO 1": Leg(2, 1, 0.0),
    "1 rank": Leg(1, 1, 0.25, "2 ranks, ZeRO 1"),
    "4 ranks": Leg(4, 1, 0.5, "1 rank"),
    "2 ranks again": Leg(2, 1, 0.75, "4 ranks"),
    "2 ranks, ZeRO 3": Leg(2, 3, 0.25, "2 ranks, ZeRO 1"),
    "1 rank, never interrupted": Leg(1, 1, 0.0),
}
WHOLE, *CHAIN = ("2 ranks, ZeRO 1", "1 rank", "4 ranks", "2 ranks again")
OTHER_STAGE, OTHER_RANKS = "2 ranks, ZeRO 3", "1 rank, never interrupted"


def prove(*, seed: int = 0, count: int = 24) -> dict[str, Any]:
    """Train that many steps (a multiple of four), in both precisions."""
    with tempfile.TemporaryDirectory() as name:
        shards = _data.make_real(Path(name) / "data")
        found = {
            precision: measured(Path(name) / precision, shards, precision, seed=seed, steps=count)
            for precision in ("fp32", "bf16")
        }
    rows_hold = all(not any(one["rows"].values()) for one in found.values())
    holds = rows_hold and found["fp32"]["worst"] <= BAR
    return {"holds": holds, "bar": BAR, "steps": count, "batch_size": BATCH_SIZE, **found}


def measured(folder: Path, shards: Path, precision: str, *, seed: int, steps: int) -> dict[str, Any]:
    """All legs in one precision, and how far each is from the run that nobody interrupted."""
    jobs: dict[str, Job] = {}
    for name, leg in LEGS.items():
        halted = jobs[leg.resumes].folder.parent if leg.resumes else None
        start = int(leg.start * steps)
        jobs[name] = _job(folder / name, shards, precision, leg, seed=seed, steps=steps)
        if halted is not None:
            checkpoint = halted / "checkpoints" / f"step-{start:06d}"
            state.validate(str(checkpoint), [])
            jobs[name] = _resuming(jobs[name], checkpoint)
        supervise(lambda _, job=jobs[name]: job, local.Config(), ONCE)  # type: ignore[misc]
    losses = {name: dict(by_step(job.folder / "events", "step", "loss")) for name, job in jobs.items()}
    apart = {name: differences(losses[name], losses[WHOLE]) for name in losses if name != WHOLE}
    return {
        "worst": max(max(apart[name].values()) for name in (*CHAIN, OTHER_STAGE)),
        "relative_difference": apart,
        "between_uninterrupted_runs": max(apart[OTHER_RANKS].values()),
        "rows": _rows(jobs, shards, seed=seed, steps=steps),
        "positions": {name: _position(job, steps) for name, job in jobs.items()},
        "losses": losses[WHOLE],
    }


def differences(losses: Mapping[int, float], whole: Mapping[int, float]) -> dict[int, float]:
    """Of each step, relative to the run that nobody interrupted."""
    return {step: abs(loss / whole[step] - 1) for step, loss in losses.items()}


def _job(folder: Path, shards: Path, precision: str, leg: Leg, *, seed: int, steps: int) -> Job:
    training = {
        "steps": steps,
        "batch_size": BATCH_SIZE,
        "learning_rate": 3e-3,
        "precision": precision,
        "checkpoint_every": steps // 4,
        "evaluate_every": steps // 4,
        "held_out_sequences": 12,
    }
    settings = {
        "shards": str(shards),
        "checkpoints": str(folder / "checkpoints"),
        "scratch": str(folder / "scratch"),
        "model": MODEL.model_dump(),
        "training": training,
        "parallelism": {"zero": {"stage": leg.stage}},
        "seed": seed,
    }
    return Job("reshape", "case_studies._witnessed_train", settings, folder / "job", leg.ranks)


def _resuming(job: Job, checkpoint: Path) -> Job:
    return Job(
        job.name, job.target, {**job.settings, "resume_from": str(checkpoint)}, job.folder, job.processes
    )


def _rows(jobs: Mapping[str, Job], shards: Path, *, seed: int, steps: int) -> dict[str, int]:
    """Steps whose rows are not those that one process reads; rows that came twice; rows that never came."""
    with Reader(str(shards)) as reader:
        stream = TokenStream(
            reader, "train", sequence_length=MODEL.context_length, batch_size=BATCH_SIZE, seed=seed
        )
        wanted = {step: _witnessed_train.rows(stream.batch(step - 1)) for step in range(1, steps + 1)}
        places = {
            (one.shard.name, one.sequence)
            for step in wanted
            for one in (stream.origin(step - 1, row) for row in range(BATCH_SIZE))
        }
    assert len(places) == steps * BATCH_SIZE, "the data set has more sequences than the run reads"
    fed = {name: _fed(job) for name, job in jobs.items()}
    chain = {step: rows for name in (WHOLE, *CHAIN) for step, rows in fed[name].items()}
    seen = [row for step in sorted(chain) for row in chain[step]]
    return {
        "different": sum(rows != wanted[step] for one in fed.values() for step, rows in one.items()),
        "repeated": len(seen) - len(set(seen)),
        "left_out": len({row for rows in wanted.values() for row in rows} - set(seen)),
    }


def _fed(job: Job) -> dict[int, list[str]]:
    """The global batch of every step: the rows of rank 0, then of rank 1, and so on."""
    found: dict[int, list[str]] = {}
    for rank in range(job.processes):
        for line in _witnessed_train.place(job.folder, rank).read_text().splitlines():
            step, rows = json.loads(line)
            found[step] = [*found.get(step, []), *rows]
    return found


def _position(job: Job, steps: int) -> int:
    """Samples consumed, as the last checkpoint says."""
    found = manifest.read(Path(job.settings["checkpoints"]) / f"step-{steps:06d}").data_position
    assert found is not None, "of pre-training"
    return found.samples_consumed
