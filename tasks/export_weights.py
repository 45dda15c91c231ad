"""From a validated checkpoint to a release."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from components.records import Artifact
from components.serving.config import Serving
from components.serving.export import export


@task(cache_policy=NO_CACHE)
def export_weights(policy: Artifact, weights: str, scratch: Path, serving: Serving, model: str) -> Artifact:
    """Publish the policy's weights as a release that never changes."""
    return export(policy, weights, scratch, serving, model=model)
