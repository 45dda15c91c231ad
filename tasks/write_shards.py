"""Turn kept documents into a published data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from components.config import Data
from components.data.card import card
from components.data.curation.checked import Checked
from components.data.dataset import make_dataset
from components.plugins import name_of
from components.records import RunFolder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@task(cache_policy=NO_CACHE)
def write_shards(checked: Checked, tokenizer: Tokenizer, data: Data, folder: RunFolder) -> str:
    """Where the data set now lies, all of it at once."""
    url, kind = folder.path("shards"), name_of(data.source)
    manifest = make_dataset(
        checked, tokenizer, url, kind=kind, config=data.shards, scratch=folder.scratch("shards")
    )
    create_markdown_artifact(key="dataset-card", markdown=card(manifest, url))
    return url
