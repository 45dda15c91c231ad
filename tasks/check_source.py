"""Read a source and keep what passes the checks."""

from __future__ import annotations

from functools import partial
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from components.config import Data
from components.data.curation.checked import FRAMES, Checked
from components.data.curation.curate import curate
from components.data.shards import split_of
from components.errors import GateRefused
from components.plugins import load, name_of
from components.records import RunFolder


@task(cache_policy=NO_CACHE)
def check_source(data: Data, folder: RunFolder) -> Checked:
    """Documents that may be trained on; a source that fails its suite as a whole is refused."""
    checked = curate(
        load("components.data.sources", name_of(data.source)).read(data.source),
        data.checks,
        scratch=folder.scratch("curation"),
        split_of=partial(split_of, config=data.shards),
    )
    create_table_artifact(
        key="expectations", table=_rows(checked.report), description="What the documents had to be"
    )
    if not checked.report["success"]:
        raise GateRefused(f"source '{name_of(data.source)}'", checked.verdicts)
    return checked


def _rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"frame": frame, **found} for frame in FRAMES for found in report[frame]]
