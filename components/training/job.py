"""The pre-training job of a run: each attempt goes on from the newest checkpoint that may be trusted."""

from __future__ import annotations

import math

from components.checkpoints import retention
from components.checkpoints.check import resumable
from components.config import Profile, Run, run_folder
from components.jobs import Job
from components.plugins import load
from components.records import Artifact, digest
from components.reliability.finding import FIRST, Attempt
from components.training.rewind import prepare


def checkpoints_of(run: Run, profile: Profile) -> str:
    """Where the run's pre-training checkpoints are published."""
    return run_folder(run, profile).path("checkpoints", "pretrain")


def numbers_of_ranks(run: Run, profile: Profile) -> list[int]:
    """With how many ranks the job can run: whole nodes, and batches that divide evenly."""
    degrees = (load("components.parallelism", name).degree(one) for name, one in run.parallelism.items())
    copy = math.prod(degrees)
    node = int(getattr(profile.launcher, "processes_per_node", 1))
    batch = run.training.batch_size
    copies = [count for count in range(1, batch + 1) if batch % count == 0]
    return [count * copy for count in copies if count * copy % node == 0]


def job_for(run: Run, profile: Profile, shards: Artifact, attempt: Attempt = FIRST) -> Job:
    """One attempt: settings, processes, threads, and where to go on from."""
    folder, checkpoints = run_folder(run, profile), checkpoints_of(run, profile)
    chosen = run.model_dump(mode="json", include={"model", "training", "parallelism", "seed"})
    left_out = prepare(checkpoints, attempt)
    resume_from = resumable(checkpoints, folder.scratch("resume"))
    retention.apply(checkpoints, profile.retention)
    settings = {
        **chosen,
        "shards": shards.url,
        "checkpoints": checkpoints,
        "scratch": str(folder.scratch("pretrain-checkpoints")),
        "device": profile.devices.kind,
        "resume_from": resume_from,
        "left_out": left_out,
        "config_digest": digest(chosen),
        "preemption": profile.reliability.preemption.model_dump(mode="json"),
    }
    return Job(
        name="pretrain",
        target="components.training.pretrain",
        settings=settings,
        folder=folder.scratch("pretrain"),
        processes=attempt.processes or profile.processes,
        threads_per_process=profile.devices.threads_per_process,
        grace_seconds=math.ceil(profile.reliability.preemption.grace_seconds),
    )
