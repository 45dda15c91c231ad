"""Before and after alignment, where Prefect shows it."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from components.alignment.summary import as_markdown


@task(cache_policy=NO_CACHE)
def show_alignment(compared: dict[str, Any]) -> None:
    """Leave the comparison as an artifact."""
    create_markdown_artifact(key="alignment", markdown=as_markdown(compared))
