"""A rank that is killed costs at most 15 seconds, until the job does a step that it had not done before.

Two real ranks train under torchrun and the supervisor, as shipped but for the pause before a restart. One of
them is ended by SIGKILL at a drawn step and phase; the job goes on from its newest validated checkpoint. The
clock runs from the signal, which the rank itself writes down, to the event of the first step beyond the last
one done: detection, the end of the other rank, imports, rendezvous, restoring and the repeated steps. And
the rank that is named must be the one that was killed, though its peer fails with an error as well.
"""

from __future__ import annotations

import logging
import random
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from case_studies.proofs import _data
from case_studies.proofs.killed_saves import MODEL, profile_in
from components.config import Profile, Run
from components.jobs import Job
from components.observability import events
from components.records import Artifact
from components.reliability.faults import Drill, struck_at
from components.reliability.finding import Attempt
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.training.config import Training
from components.training.job import job_for

logger = logging.getLogger(__name__)

TITLE = "From kill -9 to a new step"
BAR_SECONDS = 15.0
STEPS, SAVED_EVERY = 40, 10
PHASES = ("data", "forward", "backward", "optimizer")
LIMITS = Limits(backoff_seconds=0.0)


def prove(*, seed: int = 0, count: int = 20) -> dict[str, Any]:
    """Kill that many ranks, each in a job of its own."""
    draw, journal = random.Random(seed), []
    with tempfile.TemporaryDirectory() as name:
        _data.make_real_in_pieces(Path(name) / "data")
        for number in range(count):
            journal.append(killed(Path(name), f"kill-{number:03d}", draw))
            logger.info("%s", journal[-1])
    to_new_step = [one["seconds_to_a_new_step"] for one in journal]
    right = sum(one["named"] == one["rank"] for one in journal)
    return {
        "holds": max(to_new_step) <= BAR_SECONDS and right == count,
        "bar_seconds": BAR_SECONDS,
        "kills": count,
        "right_rank": right,
        "seconds_to_a_new_step": [min(to_new_step), statistics.median(to_new_step), max(to_new_step)],
        "journal": journal,
    }


def killed(folder: Path, name: str, draw: random.Random) -> dict[str, Any]:
    """One kill: where, who was named, and the seconds to each thing that follows."""
    training = Training(
        steps=STEPS, checkpoint_every=SAVED_EVERY, evaluate_every=SAVED_EVERY, held_out_sequences=8
    )
    run, profile = Run(name=name, model=MODEL, training=training), profile_in(folder / name)
    rank, step, phase = draw.randrange(2), draw.randrange(SAVED_EVERY + 2, STEPS - 1), draw.choice(PHASES)
    marker = folder / f"{name}.struck"
    drill = Drill(kind="kill", rank=rank, step=step, phase=phase, once=str(marker))
    jobs: list[Job] = []

    def attempt(next_: Attempt) -> Job:
        jobs.append(_job(run, profile, folder, next_, drill))
        return jobs[-1]

    outcome, struck = supervise(attempt, profile.launcher, LIMITS), struck_at(marker)
    assert struck is not None, "the job has ended after its restart"
    (fault,) = outcome.faults
    steps = events.read(jobs[-1].folder / "events", "step", rank=0)
    done = max(one["step"] for one in steps if one["at"] < struck)
    again = [one for one in steps if one["at"] > fault.at.timestamp()]
    new = next(one["at"] for one in again if one["step"] > done)
    return {
        "rank": rank,
        "step": step,
        "phase": phase,
        "named": fault.rank,
        "seconds_to_detect": round(fault.at.timestamp() - struck, 3),
        "seconds_to_a_step": round(again[0]["at"] - struck, 3),
        "seconds_to_a_new_step": round(new - struck, 3),
        "repeated_steps": done - outcome.result["first_step"],
    }


def _job(run: Run, profile: Profile, folder: Path, next_: Attempt, drill: Drill) -> Job:
    asked = job_for(run, profile, Artifact(name="shards", url=str(folder / "data"), digest=""), next_)
    return replace(asked, environment={**asked.environment, **drill.environment})
