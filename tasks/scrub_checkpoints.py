"""Stored checkpoints, read again."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from components.checkpoints import scrub
from components.checkpoints.scrub import Scrubbed


@task(cache_policy=NO_CACHE)
def scrub_checkpoints(url: str, megabytes_per_second: float | None = None) -> list[Scrubbed]:
    """Read every checkpoint in what is named, quarantine what has rotted, and show what became of each."""
    found = list(scrub.scrub(url, megabytes_per_second=megabytes_per_second))
    rows = [{"verdict": one.verdict, "checkpoint": one.url, "detail": one.line} for one in found]
    create_table_artifact(key="scrubbed-checkpoints", table=rows, description=scrub.summary(found))
    return found
