"""What a served model must answer."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from components import storage
from components.records import Artifact
from components.serving import reference
from components.serving.config import Serving
from components.serving.reference import Answer


@task(cache_policy=NO_CACHE)
def ask_trainer(policy: Artifact, scratch: Path, serving: Serving) -> list[Answer]:
    """The trainer's own answers, from the checkpoint: what the server will be compared with."""
    return reference.ask_trainer(storage.fetch(policy.url, scratch), serving.prompts, serving.answer_tokens)
