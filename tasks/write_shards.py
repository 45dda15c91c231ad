"""Turn kept documents into a published data set."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE

from components.config import Data, Sharding
from components.data.card import card
from components.data.curation.checked import Checked
from components.data.writing import pool
from components.data.writing.dataset import Progress, Write, make_dataset
from components.records import RunFolder
from tasks.write_group import write_in_groups

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@task(cache_policy=NO_CACHE)
def write_shards(
    checked: Checked, tokenizer: Tokenizer, data: Data, sharding: Sharding, folder: RunFolder
) -> str:
    """Where the data set now lies, all of it at once."""
    url = folder.path("shards")
    manifest = make_dataset(
        checked,
        tokenizer,
        url,
        source=data.source,
        config=data.shards,
        scratch=folder.scratch("shards"),
        write=_writer(sharding),
        on_progress=_progress(url),
    )
    create_markdown_artifact(key="dataset-card", markdown=card(manifest, url))
    return url


def _writer(sharding: Sharding) -> Write:
    """On one machine worker processes of our own, since Prefect's take seconds to start."""
    if sharding.runner == "processes":
        return partial(pool.write, workers=sharding.workers)
    return partial(write_in_groups, sharding=sharding)


def _progress(url: str) -> Progress:
    progress = create_progress_artifact(key="written-shards", progress=0.0, description=f"Writing {url}")
    assert isinstance(progress, UUID)
    shown = 0

    def tell(done: int, total: int) -> None:
        nonlocal shown
        if done * 20 // total > shown:
            shown = done * 20 // total
            update_progress_artifact(progress, progress=100.0 * done / total)

    return tell
