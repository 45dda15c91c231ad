"""prefect.yaml: every flow and case study is a deployment that loads, fits and can be switched on."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from components import plugins

ROOT = Path(__file__).parent.parent
FILE = yaml.safe_load((ROOT / "prefect.yaml").read_text())
DEPLOYMENTS = {deployment["name"]: deployment for deployment in FILE["deployments"]}


def flow_of(deployment: dict[str, Any]) -> Any:
    module, _, name = deployment["entrypoint"].rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_file_is_one_that_prefect_accepts() -> None:
    from prefect.cli.deploy._models import PrefectYamlModel

    assert len(PrefectYamlModel.model_validate(FILE).deployments) == len(DEPLOYMENTS)


def test_every_flow_is_deployed() -> None:
    deployed = {deployment["entrypoint"].rpartition(".")[2] for deployment in DEPLOYMENTS.values()}
    assert deployed == set(plugins.names("flows")) - {"cli"}


def test_every_case_study_is_triggered_by_hand() -> None:
    studies = [d for d in DEPLOYMENTS.values() if "case-study" in d["tags"]]
    assert {d["parameters"]["name"] for d in studies} == set(plugins.names("case_studies"))
    assert all(d["schedules"] == [] for d in studies)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployments_parameters_fit_its_flow(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    flow_of(deployment).validate_parameters(deployment["parameters"])


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_schedules_have_slugs_and_wait_for_someone_to_switch_them_on(name: str) -> None:
    from prefect.client.schemas.schedules import CronSchedule

    for schedule in DEPLOYMENTS[name]["schedules"]:
        assert schedule["slug"]
        assert schedule["active"] is False
        assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_phones_nobody_and_runs_one_at_a_time(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    assert deployment["work_pool"]["job_variables"]["env"]["DO_NOT_TRACK"] == "1"
    assert deployment["concurrency_limit"]["limit"] == 1
    assert "stanchion" in deployment["tags"]
