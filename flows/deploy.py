"""From an aligned policy to a release that takes the traffic, or a refused one that changed nothing."""

from __future__ import annotations

from prefect import flow

from components.checkpoints.names import folder_of
from components.checkpoints.restore import why
from components.config import Profile, Run, run_folder
from components.records import Artifact, Record, Stage
from components.serving import rollout
from components.serving.vllm_server import stopped_unless_kept
from components.stages import open_for
from tasks.ask_trainer import ask_trainer
from tasks.check_deployment import check_deployment
from tasks.export_weights import export_weights
from tasks.load_test import load_test
from tasks.probe_server import probe_server
from tasks.promote import promote
from tasks.start_server import start_server


@flow(name="deploy")
def deploy(run: Run, profile: Profile) -> Record:
    """Export the policy, serve it, question the server, and promote it only if the gates agree."""
    folder = run_folder(run, profile)
    policy = folder.completed("rl").output("policy")
    chosen = run.model_dump(mode="json")
    settings = {"serving": chosen["serving"], "gates": chosen["gates"]["deployment"]}
    with open_for(run, profile, "deploy", settings=settings, inputs=[policy]) as stage:
        if stage.done is None:
            stage.metrics["chosen"] = why(folder_of(policy.url), policy.url)
            export_scratch = folder.scratch("export")
            weights = export_weights(policy, folder.path("weights"), export_scratch, run.serving, run.name)
            stage.outputs.append(weights)
            _try_out(run, profile, stage, policy, weights)
    return stage.record


def _try_out(run: Run, profile: Profile, stage: Stage, policy: Artifact, weights: Artifact) -> None:
    """Promoted or refused, and no server left behind that nobody asked for."""
    pointer = rollout.pointer_url(profile.storage.root, run.name)
    scratch = run_folder(run, profile).scratch("servers")
    known = ask_trainer.submit(policy, scratch, run.serving)  # while the server starts
    with (
        rollout.on_trial(pointer, weights.digest),
        stopped_unless_kept(start_server(weights, scratch, run.serving, profile)) as server,
    ):
        stage.metrics |= server.readiness()
        stage.metrics |= probe_server(server, known.result(), run.serving)
        stage.metrics["load"] = load_test(server, run)
        stage.verdicts += check_deployment(weights, stage.metrics, run.gates.deployment)
        keep = run.serving.keep_running
        stage.outputs.append(promote(pointer, weights, server, run_id=run.id, keep_running=keep))
