"""The page about a run."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE

from components import storage
from components.observability import report
from components.records import RunFolder


@task(cache_policy=NO_CACHE)
def write_report(folder: RunFolder) -> str:
    """Publish the report of a run and link it from the flow run."""
    url = report.write(folder)
    link = storage.local_path(url).absolute().as_uri() if storage.is_local(url) else url
    create_link_artifact(key="report", link=link, link_text=f"Report of {folder.run_id}")
    return url
