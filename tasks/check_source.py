"""Read a source and keep what passes the checks."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from components.data.curation.checked import Checked
from components.data.curation.curate import Config, curate
from components.errors import GateRefused
from components.plugins import Config as Source
from components.plugins import load, name_of


@task(cache_policy=NO_CACHE)
def check_source(source: Source, checks: Config) -> Checked:
    """Documents that may be trained on; a source that fails its suite as a whole is refused."""
    checked = curate(load("components.data.sources", name_of(source)).read(source), checks)
    create_table_artifact(
        key="expectations", table=_rows(checked.report), description="What the documents had to be"
    )
    if not checked.report["success"]:
        raise GateRefused(f"source '{name_of(source)}'", checked.verdicts)
    return checked


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"frame": frame, **found} for frame in ("documents", "totals") for found in report[frame]]
