"""A flow run that nobody reports any more does not stay Running: the server misses its heartbeats.

A worker, or whoever serves a flow, sees that a run's process has ended and says so. When it goes down with
the run (the machine is gone), nobody does. So runs beat (`PREFECT_FLOWS_HEARTBEAT_FREQUENCY`), and an
automation of the server marks as Crashed what has beaten and then neither beats nor ends. `flows._serve` sets
it up; for another server, `python -m flows._heartbeats` with its address in PREFECT_API_URL.

Pattern: Reconciled Runs
Problem: an orchestrator shows a run as Running for days, though its process and its worker are gone.
Answer: the run itself must say again and again that it is there; silence changes its state.
Trade-off: some minutes until it is believed, and a run that is cut off from the server looks dead to it.
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

NAME = "runs that no longer beat are Crashed"
MISSED_SECONDS = 90
"""Three beats: every 30 seconds is the most often that Prefect knows."""
ENDS = ("Completed", "Failed", "Cancelled", "Crashed")


def automation() -> AutomationCore:
    """What the server is to do about a run that has gone silent."""
    beat = "prefect.flow-run.heartbeat"
    return AutomationCore(
        name=NAME,
        description="Set up by Stanchion: the process of the run is gone, and so is who would have told.",
        trigger=EventTrigger(
            after={beat},
            expect={beat, *(f"prefect.flow-run.{state}" for state in ENDS)},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=MISSED_SECONDS),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no heartbeat for {MISSED_SECONDS} s: its process is gone or cut off",
            )
        ],
    )


def watch() -> None:
    """Set it up, once."""
    with get_client(sync_client=True) as client:
        if not client.read_automations_by_name(NAME):
            client.create_automation(automation())


if __name__ == "__main__":
    watch()
