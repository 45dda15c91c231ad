"""From a base model to a policy that answers: taught by examples, then by reward, each behind its gates."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import flow

from components.alignment.jobs import checkpoints_of, comparison_job, pairs_of, training_job
from components.checkpoints.check import artifact_of
from components.checkpoints.keeper import Keeper
from components.checkpoints.restore import quarantine_faults, why
from components.config import Profile, Run, run_folder
from components.plugins import Config
from components.records import Artifact, Record, Stage
from components.stages import open_for
from components.training.curve import publish_events
from tasks.check_checkpoint import check_checkpoint
from tasks.collect_pairs import collect_pairs
from tasks.launch_job import launch_job
from tasks.show_alignment import show_alignment


@flow(name="align")
def align(run: Run, profile: Profile) -> Record:
    """Teach the base model to answer, then to answer well; keep the policy only if the gates agree."""
    _teach(run, profile)
    return _reinforce(run, profile)


def _teach(run: Run, profile: Profile) -> Record:
    """Supervised fine-tuning on functions of the train split: the stage `sft`."""
    folder = run_folder(run, profile)
    shards = folder.completed("shard_dataset").output("shards")
    base = folder.completed("pretrain").output("checkpoint")
    with open_for(run, profile, "sft", settings=_settings(run, "sft"), inputs=[shards, base]) as stage:
        if stage.done is None:
            limits = run.alignment.pairs
            stage.metrics["pairs_by_split"] = collect_pairs(
                shards.url, pairs_of(run, profile), limits, folder.scratch("pairs")
            )
            url = _train(run, profile, stage, shards, base, steps=run.alignment.sft.steps)
            stage.verdicts += check_checkpoint(
                url, _shared_gates(run), shards.url, folder.scratch("check"), keep=profile.retention
            )
            stage.outputs.append(artifact_of(url, "sft_policy"))
            stage.metrics["chosen"] = why(checkpoints_of(run, profile, "sft"), url)
    return stage.record


def _reinforce(run: Run, profile: Profile) -> Record:
    """Reinforcement learning from a verifiable reward, judged on held-out prompts: the stage `rl`."""
    folder = run_folder(run, profile)
    shards = folder.completed("shard_dataset").output("shards")
    start = folder.completed("sft").output("sft_policy")
    with open_for(run, profile, "rl", settings=_settings(run, "rl"), inputs=[shards, start]) as stage:
        if stage.done is None:
            url = _train(run, profile, stage, shards, start, steps=run.alignment.rl.steps)
            compared = _compare(run, profile, stage, start, url)
            stage.verdicts += check_checkpoint(
                url,
                run.gates.alignment,
                shards.url,
                folder.scratch("check"),
                figures=compared,
                keep=profile.retention,
            )
            stage.outputs.append(artifact_of(url, "policy"))
            stage.metrics["chosen"] = why(checkpoints_of(run, profile, "rl"), url)
    return stage.record


def _train(run: Run, profile: Profile, stage: Stage, shards: Artifact, start: Artifact, *, steps: int) -> str:
    """Run the stage's job to its end and say where its checkpoint is; events and faults are always kept."""
    attempts = partial(training_job, run, profile, stage.name, shards, start)
    checkpoints, scratch = checkpoints_of(run, profile, stage.name), stage.folder.scratch("keeper")
    keeper = Keeper(checkpoints, run.gates.during, profile.retention, scratch)
    try:
        outcome = launch_job(
            stage.name,
            attempts,
            profile.launcher,
            total_steps=steps,
            reliability=profile.reliability,
            keeper=keeper,
        )
    finally:
        events = stage.folder.scratch(stage.name) / "events"
        publish_events(events, stage.folder.path("events", stage.name))
        stage.faults += quarantine_faults(checkpoints)
    stage.faults += outcome.faults
    stage.metrics |= outcome.result | {"restarts": outcome.restarts, "job_seconds": outcome.seconds}
    stage.metrics |= {"goodput": outcome.goodput}
    return str(outcome.result["checkpoint"])


def _compare(run: Run, profile: Profile, stage: Stage, start: Artifact, url: str) -> dict[str, Any]:
    """Both policies on the same held-out prompts, in the record and where Prefect shows it."""
    attempts = partial(comparison_job, run, profile, start, url)
    outcome = launch_job("compare", attempts, profile.launcher, reliability=profile.reliability)
    stage.faults += outcome.faults
    compared = outcome.result
    stage.metrics |= {name: compared[name] for name in ("before", "after", "rise", "samples", "prompts")}
    stage.metrics |= {"kl": compared["after"]["kl_per_token"]["mean"], "compare_seconds": outcome.seconds}
    show_alignment(compared)
    return compared


def _settings(run: Run, stage: str) -> dict[str, Any]:
    """What the stage's result depends on, beside its inputs."""
    whole = run.model_dump(mode="json", include={"model", "training", "alignment", "parallelism", "gates"})
    parts = {"sft": ("pairs", "sft"), "rl": ("pairs", "rl", "evaluation")}[stage]
    return {
        "model": whole["model"],
        "precision": whole["training"]["precision"],
        "parallelism": whole["parallelism"],
        "alignment": {name: whole["alignment"][name] for name in parts},
        "gates": whole["gates"]["alignment"],
    }


def _shared_gates(run: Run) -> dict[str, Config]:
    """Of the gates of a policy, those that can be asked of any checkpoint, without a before and after."""
    return {name: gate for name, gate in run.gates.alignment.items() if name in run.gates.checkpoint}
