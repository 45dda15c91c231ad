"""The page about a data set."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE

from components import storage
from components.observability import data_page
from components.records import Artifact, RunFolder


@task(cache_policy=NO_CACHE)
def show_dataset(url: str, folder: RunFolder) -> Artifact:
    """Publish the page of a data set and link it from the flow run."""
    page = data_page.write(folder, url)
    link = storage.local_path(page).absolute().as_uri() if storage.is_local(page) else page
    create_link_artifact(key="data-set", link=link, link_text="What the data set holds")
    return Artifact(name="data_page", url=page, digest=storage.sha256_of_bytes(storage.read_bytes(page)))
