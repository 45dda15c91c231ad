"""The incident, for real."""

from __future__ import annotations

import shutil
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from components import study
from components.config import Profile
from components.study import Result


@task(cache_policy=NO_CACHE, task_run_name="run_study: {name}")
def run_study(name: str, profile: Profile, folder: Path) -> Result:
    """Run a case study anew, in a folder that holds nothing of its last time."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return study.run(name, profile, folder)
