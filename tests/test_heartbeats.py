"""A run that nobody reports any more: the server is told what to do about it, once."""

from __future__ import annotations

import pytest
import yaml

from case_studies.proofs.cancelled_flows import End, is_right


@pytest.mark.usefixtures("prefect_server")
def test_the_server_is_told_once_to_crash_what_no_longer_beats() -> None:
    from prefect.client.orchestration import get_client

    from flows import _heartbeats

    _heartbeats.watch()
    _heartbeats.watch()
    with get_client(sync_client=True) as client:
        (found,) = client.read_automations_by_name(_heartbeats.NAME)
    assert found.enabled
    assert found.actions[0].state.value == "CRASHED"
    assert found.trigger.within.total_seconds() >= 3 * beats_every()


def beats_every() -> int:
    """Seconds, as every deployment says."""
    with open("prefect.yaml") as file:
        pool = yaml.safe_load(file)["definitions"]["pool"]
    return int(pool["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"])


@pytest.mark.parametrize(
    ("name", "end", "right"),
    [
        ("cancel, worker", End(4, 3.2, 14.9, "Cancelled"), True),
        ("cancel, worker", End(4, 12.0, 14.9, "Cancelled"), False),
        ("cancel, served", End(4, 3.2, 6.0, "Crashed"), False),
        ("kill -9, served", End(4, 0.1, 0.2, "Crashed"), True),
        ("kill -9, served", End(4, 0.1, 60.0, "Running"), False),
    ],
)
def test_the_proof_refuses_late_processes_and_wrong_states(name: str, end: End, right: bool) -> None:
    assert is_right(name, end) is right
