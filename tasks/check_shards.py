"""Read a data set against its manifest."""

from __future__ import annotations

from uuid import UUID

from prefect import task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from components.data.integrity import check_dataset
from components.data.manifest import Manifest


@task(cache_policy=NO_CACHE)
def check_shards(url: str) -> Manifest:
    """The manifest, after every byte it lists was read back from where it was published."""
    progress = create_progress_artifact(key="checked-shards", progress=0.0, description=f"Reading {url}")
    assert isinstance(progress, UUID)

    def tell(done: int, total: int) -> None:
        update_progress_artifact(progress, progress=100.0 * done / total)

    return check_dataset(url, on_progress=tell)
