"""Waits: the inner one always gives up first, or the job is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from components.config import Profile, Run, configure, profile_names
from components.errors import ConfigError
from components.jobs import Job
from components.launchers import kubernetes, local, slurm
from components.reliability import timeouts
from components.reliability.watchdog import Limits


@pytest.mark.parametrize("name", profile_names())
def test_each_shipped_profile_waits_in_order(name: str) -> None:
    profile = Profile.model_validate(name)
    waits = timeouts.order(
        profile.reliability.limits,
        collective_seconds=Run().training.timeout_seconds,
        launcher=profile.launcher,
    )
    seconds = [wait.seconds for wait in waits]
    assert seconds == sorted(set(seconds))
    assert [wait.name for wait in waits][:3] == ["heartbeat", "progress", "collective"]


@pytest.mark.parametrize(
    ("setting", "first", "second"),
    [
        ("profile.reliability.limits.poll_seconds=2", "floor_seconds=1.6 s", "poll_seconds=2 s"),
        ("profile.reliability.limits.checkpoint_seconds=900", "timeout_seconds=900 s", "checkpoint_seconds"),
        ("training.timeout_seconds=60", "training.timeout_seconds=60 s", "checkpoint_seconds=600 s"),
    ],
)
def test_a_wait_that_outlasts_the_one_around_it_is_refused_with_both_values(
    setting: str, first: str, second: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        configure("laptop", [setting])
    assert first in str(refusal.value)
    assert second in str(refusal.value)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("profile.launcher.rendezvous_seconds=900", "rendezvous_seconds=900 s is no longer than training"),
        ("profile.launcher.time_limit=00:20:00", "time_limit=1200 s is no longer than profile.launcher.rend"),
    ],
)
def test_a_cluster_waits_longer_than_its_ranks(setting: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        configure("slurm", [setting])


def test_days_of_a_time_limit_count() -> None:
    waits = timeouts.order(Limits(), collective_seconds=900, launcher=slurm.Config(time_limit="2-01:00:05"))
    assert waits[-1].seconds == 49 * 3600 + 5


def test_a_laptop_has_no_rendezvous_and_no_scheduler_to_wait_for() -> None:
    waits = timeouts.order(Limits(), collective_seconds=900, launcher=local.Config())
    assert timeouts.told(waits) == "heartbeat 0.1 s < progress 600 s < collective 900 s"


def test_the_rendezvous_of_a_cluster_waits_as_long_as_it_says(tmp_path: Path) -> None:
    job = Job("pretrain", "components.training.pretrain", {}, tmp_path / "a" / "b" / "job", processes=8)
    assert '--rdzv-conf "timeout=1300"' in slurm.render(job, slurm.Config(rendezvous_seconds=1300))
    _, made = yaml.safe_load_all(kubernetes.render(job, kubernetes.Config(rendezvous_seconds=1300)))
    assert "--rdzv-conf=timeout=1300" in made["spec"]["template"]["spec"]["containers"][0]["args"]
