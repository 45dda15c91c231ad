"""The pre-training job of a run: each attempt goes on from the newest checkpoint that may be trusted."""

from __future__ import annotations

from components.checkpoints import retention
from components.checkpoints.check import resumable
from components.config import Profile, Run, run_folder
from components.jobs import Job
from components.records import Artifact, digest
from components.reliability.finding import FIRST, Attempt


def checkpoints_of(run: Run, profile: Profile) -> str:
    """Where the run's pre-training checkpoints are published."""
    return run_folder(run, profile).path("checkpoints", "pretrain")


def job_for(run: Run, profile: Profile, shards: Artifact, attempt: Attempt = FIRST) -> Job:
    """One attempt: settings, processes, threads, and where to go on from."""
    folder, checkpoints = run_folder(run, profile), checkpoints_of(run, profile)
    chosen = run.model_dump(mode="json", include={"model", "training", "parallelism", "seed"})
    resume_from = resumable(checkpoints, folder.scratch("resume"))
    retention.apply(checkpoints, profile.retention)
    settings = {
        **chosen,
        "shards": shards.url,
        "checkpoints": checkpoints,
        "scratch": str(folder.scratch("pretrain-checkpoints")),
        "device": profile.devices.kind,
        "resume_from": resume_from,
        "config_digest": digest(chosen),
    }
    return Job(
        name="pretrain",
        target="components.training.pretrain",
        settings=settings,
        folder=folder.scratch("pretrain"),
        processes=profile.processes,
        threads_per_process=profile.devices.threads_per_process,
    )
