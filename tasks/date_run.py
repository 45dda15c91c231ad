"""Which edition of a run a flow works on."""

from __future__ import annotations

from prefect import runtime

from components.config import Run


def date_run(run: Run) -> Run:
    """A deployment's run is named after the time it was scheduled for, so each night makes a run of its own.

    A retry of the same flow run keeps its time, hence its folder, and continues there. Runs from the command
    line keep the id of their configuration: the same command continues the same run.
    """
    if run.edition or not runtime.deployment.id:
        return run
    scheduled = runtime.flow_run.scheduled_start_time
    return run.model_copy(update={"edition": scheduled.strftime("%Y%m%d-%H%M%S")})
