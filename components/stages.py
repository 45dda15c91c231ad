"""Opening a stage of a run under a profile: the record knows its devices and prices from there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from components.config import Profile, Run, check, run_folder
from components.records import Artifact, Stage, open_stage


def open_for(
    run: Run, profile: Profile, name: str, *, settings: dict[str, Any], inputs: list[Artifact]
) -> AbstractContextManager[Stage]:
    """The stage `name` of `run`; see `records.open_stage`. ConfigError when run and profile do not fit."""
    check(run, profile)
    return open_stage(
        run_folder(run, profile),
        name,
        settings={"seed": run.seed, **settings},
        inputs=inputs,
        profile=profile.name,
        devices=profile.processes,
        price_per_device_hour=profile.prices.device_hour,
        currency=profile.prices.currency,
    )
