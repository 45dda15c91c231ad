"""Cut the documents of a data set into prompts and bodies."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from components import storage
from components.alignment import pairs
from components.alignment.config import Pairs


@task(cache_policy=NO_CACHE)
def collect_pairs(shards: str, target: str, limits: Pairs, scratch: Path) -> dict[str, int]:
    """How many pairs each split has, once they lie at `target`."""
    return pairs.collect(storage.fetch(shards, scratch), target, limits)
