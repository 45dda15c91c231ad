"""The course of a training job, where Prefect shows it."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from components.training.curve import as_markdown


@task(cache_policy=NO_CACHE)
def show_training(measured: dict[str, Any]) -> None:
    """Leave the loss curve as an artifact."""
    create_markdown_artifact(key="training", markdown=as_markdown(measured))
