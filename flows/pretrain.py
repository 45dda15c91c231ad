"""From shards to a checkpoint that its gates have vouched for."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from components.checkpoints.check import artifact_of
from components.checkpoints.keeper import Keeper
from components.checkpoints.restore import quarantine_faults, why
from components.config import Profile, Run, run_folder
from components.records import Artifact, Record, Stage
from components.stages import open_for
from components.training.curve import course, publish_events
from components.training.job import checkpoints_of, job_for, numbers_of_ranks
from tasks.check_checkpoint import check_checkpoint
from tasks.launch_job import launch_job
from tasks.show_training import show_training


@flow(name="pretrain")
def pretrain(run: Run, profile: Profile) -> Record:
    """Train on shards until the gates agree that the checkpoint is worth keeping."""
    folder = run_folder(run, profile)
    shards = folder.completed("shard_dataset").output("shards")
    settings = run.model_dump(mode="json", include={"model", "training", "parallelism"})
    settings["gates"] = run.model_dump(mode="json")["gates"]["checkpoint"]
    with open_for(run, profile, "pretrain", settings=settings, inputs=[shards]) as stage:
        if stage.done is None:
            result = _train(run, profile, stage, shards)
            scratch = folder.scratch("check")
            url = result["checkpoint"]
            stage.verdicts += check_checkpoint(
                url, run.gates.checkpoint, shards.url, scratch, keep=profile.retention
            )
            stage.outputs.append(artifact_of(url))
            stage.metrics["chosen"] = why(checkpoints_of(run, profile), url)
    return stage.record


def _train(run: Run, profile: Profile, stage: Stage, shards: Artifact) -> dict[str, Any]:
    """Run the job to its end; whatever happens, its events and faults are kept."""
    events = stage.folder.scratch("pretrain") / "events"
    checkpoints = checkpoints_of(run, profile)
    keeper = Keeper(checkpoints, run.gates.during, profile.retention, stage.folder.scratch("keeper"))
    try:
        attempts = partial(job_for, run, profile, shards)
        outcome = launch_job(
            "pretrain",
            attempts,
            profile.launcher,
            total_steps=run.training.steps,
            reliability=profile.reliability,
            keeper=keeper,
            numbers_of_ranks=numbers_of_ranks(run, profile),
        )
    finally:
        publish_events(events, stage.folder.path("events", "pretrain"))
        stage.faults += quarantine_faults(checkpoints)
    stage.faults += outcome.faults
    stage.metrics |= outcome.result | course(events)
    stage.metrics |= {"restarts": outcome.restarts, "job_seconds": outcome.seconds}
    stage.metrics |= {"goodput": outcome.goodput, "mttr_seconds": outcome.mttr_seconds}
    show_training(stage.metrics)
    return outcome.result
