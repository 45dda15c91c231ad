"""The three jobs of alignment: each attempt goes on from the newest checkpoint that may be trusted."""

from __future__ import annotations

from typing import Any

from components.checkpoints import retention
from components.checkpoints.check import resumable
from components.config import Profile, Run, run_folder
from components.jobs import Job
from components.records import Artifact, digest
from components.reliability.finding import Attempt


def checkpoints_of(run: Run, profile: Profile, stage: str) -> str:
    """Where the checkpoints of `sft` or `rl` are published."""
    return run_folder(run, profile).path("checkpoints", stage)


def pairs_of(run: Run, profile: Profile) -> str:
    """Where the pairs of prompt and body lie."""
    return run_folder(run, profile).path("pairs", "functions.json")


def training_job(
    run: Run, profile: Profile, stage: str, shards: Artifact, start: Artifact, attempt: Attempt
) -> Job:
    """One attempt at `sft` or `rl`, from the weights of `start` or from where the last attempt left off."""
    folder, checkpoints = run_folder(run, profile), checkpoints_of(run, profile, stage)
    chosen = run.model_dump(mode="json", include={"model", "training", "alignment", "parallelism", "seed"})
    resume_from = resumable(checkpoints, folder.scratch("resume"))
    retention.apply(checkpoints, profile.retention)
    settings = {
        **chosen,
        "shards": shards.url,
        "pairs": pairs_of(run, profile),
        "start_from": start.url,
        "checkpoints": checkpoints,
        "scratch": str(folder.scratch(f"{stage}-checkpoints")),
        "device": profile.devices.kind,
        "resume_from": resume_from,
        "config_digest": digest(chosen | {"start": start.digest}),
    }
    return _job(run, profile, stage, f"components.alignment.{stage}", settings)


def comparison_job(run: Run, profile: Profile, before: Artifact, after: str, attempt: Attempt) -> Job:
    """Both policies on the fixed held-out prompts."""
    settings = {
        "pairs": pairs_of(run, profile),
        "before": before.url,
        "after": after,
        "alignment": run.alignment.model_dump(mode="json"),
        "precision": run.training.precision,
        "seed": run.seed,
        "device": profile.devices.kind,
        "timeout_seconds": run.training.timeout_seconds,
    }
    return _job(run, profile, "compare", "components.alignment.evaluate", settings)


def _job(run: Run, profile: Profile, name: str, target: str, settings: dict[str, Any]) -> Job:
    return Job(
        name=name,
        target=target,
        settings=settings,
        folder=run_folder(run, profile).scratch(name),
        processes=profile.processes,
        threads_per_process=profile.devices.threads_per_process,
    )
