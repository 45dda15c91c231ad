"""What the server answers, against what the trainer's model answers."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from components.serving.config import Serving
from components.serving.probe import probe
from components.serving.reference import Answer
from components.serving.vllm_server import Server


@task(cache_policy=NO_CACHE)
def probe_server(server: Server, known: list[Answer], serving: Serving) -> dict[str, dict[str, Any]]:
    """Ask the server what the trainer's model was asked: figures of `answers` and `logprobs`."""
    return probe(server.url, server.model, known, precision=serving.precision)
