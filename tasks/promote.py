"""From a candidate to what takes the traffic."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from components.records import Artifact
from components.serving import rollout
from components.serving.vllm_server import Server


@task(cache_policy=NO_CACHE)
def promote(pointer: str, release: Artifact, server: Server, *, run_id: str, keep_running: bool) -> Artifact:
    """Point the traffic at a release that has passed, and say where it answers."""
    deployment = rollout.take_traffic(pointer, release, server, run_id=run_id, keep_running=keep_running)
    lines = rollout.announcement(pointer)
    create_markdown_artifact(key="deployment", markdown="\n\n".join(lines))
    for line in lines:
        get_run_logger().info(line)
    return deployment
