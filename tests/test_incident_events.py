"""Each incident of a job is a Prefect event, for automations that wake someone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from prefect.events.clients import AssertingEventsClient
from prefect.events.worker import EventsWorker

from components.records import Fault
from tasks.launch_job import announce


@pytest.mark.usefixtures("prefect_server")
def test_a_fault_is_an_event_with_its_kind_rank_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(kind="stall", detail="rank 1 stands", at=datetime.now(UTC), rank=1, step=26)
    worker = EventsWorker.instance(AssertingEventsClient)
    monkeypatch.setattr(EventsWorker, "instance", lambda *_: worker)
    try:
        announce("pretrain", fault)
    finally:
        worker.drain()
    client = worker._client
    assert isinstance(client, AssertingEventsClient)
    (event,) = client.events
    assert event.event == "stanchion.incident.stall"
    assert event.resource.id == "stanchion.job.pretrain"
    assert (event.payload["rank"], event.payload["step"]) == (1, 26)
