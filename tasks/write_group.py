"""A share of a data set's shards, wherever Prefect's task runner takes it."""

from __future__ import annotations

import importlib
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

from components.config import Sharding
from components.data.writing import pool
from components.data.writing.layout import Part
from components.data.writing.plan import Plan
from components.data.writing.writer import Written, write_part
from components.errors import ConfigError

GROUPS = 16
"""Task runs of one data set, however many shards it has."""
CLUSTERS = {"ray": ("prefect_ray", "RayTaskRunner"), "dask": ("prefect_dask", "DaskTaskRunner")}


@task(cache_policy=NO_CACHE)
def write_group(plan: Plan, parts: list[Part]) -> list[Written]:
    """Write some shards of a plan, in a process that sees its folder."""
    return [write_part(plan, part) for part in parts]


def write_in_groups(plan: Plan, tell: pool.Tell, *, sharding: Sharding) -> None:
    """Write every shard of a plan, in groups of about equal size, by the profile's task runner."""
    count = min(GROUPS, len(plan.parts))
    few = Plan(plan.folder, plan.documents, plan.tokenizer_sha256, [])
    with _runner(sharding) as runner:
        groups = [plan.parts[start::count] for start in range(count)]
        for asked in [runner.submit(write_group, {"plan": few, "parts": parts}) for parts in groups]:
            for written in asked.result():
                tell(written)


def _runner(sharding: Sharding) -> TaskRunner[Any]:
    if sharding.runner == "threads":
        return ThreadPoolTaskRunner(max_workers=sharding.workers or pool.cores())
    package, name = CLUSTERS[sharding.runner]
    try:
        kind = getattr(importlib.import_module(package), name)
    except ImportError as error:
        raise ConfigError(
            f"profile.sharding.runner={sharding.runner} needs {package} ({error}); install it with "
            f"`uv pip install '.[{sharding.runner}]'`, or use processes"
        ) from None
    runner: TaskRunner[Any] = kind(**_size(sharding))
    return runner


def _size(sharding: Sharding) -> dict[str, Any]:
    """How each says how many workers there are; null leaves it to the cluster."""
    if sharding.workers is None:
        return {}
    if sharding.runner == "ray":
        return {"init_kwargs": {"num_cpus": sharding.workers}}
    return {"cluster_kwargs": {"n_workers": sharding.workers, "threads_per_worker": 1}}
