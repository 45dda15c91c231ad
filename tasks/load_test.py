"""How the server bears its load."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from components.config import Run
from components.serving import load_test as load_tests
from components.serving.vllm_server import Server


@task(cache_policy=NO_CACHE)
def load_test(server: Server, run: Run) -> dict[str, Any]:
    """Send the run's traffic and put the latencies on a table."""
    result = load_tests.load_test(server, run.serving.load, seed=run.seed)
    measured = ("first_token_seconds", "per_token_seconds", "latency_seconds")
    create_table_artifact(key="load-test", table=[{"measured": name, **result[name]} for name in measured])
    return result
