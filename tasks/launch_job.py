"""A training job, from launch to its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from uuid import UUID

from prefect import task
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.logging import get_run_logger

from components.checkpoints.keeper import Keeper
from components.jobs import Job
from components.plugins import Config
from components.records import Fault
from components.reliability import goodput
from components.reliability.config import Reliability
from components.reliability.finding import Attempt
from components.reliability.heartbeat import Beat
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise

UPDATE_SECONDS = 2.0
SPEAK_SECONDS = 20.0


@task(cache_policy=NO_CACHE, task_run_name="launch_job: {name}")
def launch_job(
    name: str,
    job_for: Callable[[Attempt], Job],
    launcher: Config,
    *,
    total_steps: int | None = None,
    reliability: Reliability | None = None,
    keeper: Keeper | None = None,
    numbers_of_ranks: Sequence[int] = (),
) -> Outcome:
    """Run a job under supervision; its steps show as a progress bar, its faults as events and a table.

    `job_for(attempt)` is asked before each start, so that a restart goes on from the newest checkpoint. A
    keeper judges checkpoints as they appear. One that can run with several numbers of ranks follows the
    capacity there is, where the profile says who knows it.
    """
    progress, watched = _Progress(name, total_steps), reliability or Reliability()

    def next_job(attempt: Attempt) -> Job:
        if keeper is not None:
            keeper.rest()
        return job_for(attempt)

    def look(beats: list[Beat]) -> None:
        progress(beats)
        if keeper is not None:
            keeper(beats)

    with keeper or nullcontext():
        outcome = supervise(
            next_job,
            launcher,
            watched.limits,
            look,
            detectors=watched.detectors_of,
            supply=watched.supply(numbers_of_ranks),
            on_fault=partial(announce, name),
        )
    get_run_logger().info("%s: %s%s", name, goodput.told(outcome.goodput), _recovery(outcome))
    _show_faults(name, outcome)
    return outcome


def announce(name: str, fault: Fault) -> None:
    """An event at once, `stanchion.incident.<kind>`, on which a Prefect automation can wake someone."""
    emit_event(
        f"stanchion.incident.{fault.kind}",
        resource={"prefect.resource.id": f"stanchion.job.{name}", "prefect.resource.name": name},
        payload=fault.model_dump(mode="json"),
    )


def _recovery(outcome: Outcome) -> str:
    """For the log line; empty when nothing had to recover."""
    if outcome.mttr_seconds is None:
        return ""
    return f"; {outcome.restarts} restarts, {outcome.mttr_seconds:.1f} s to recover on average"


class _Progress:
    """One progress bar, moved in place while the job trains, and now and then a line in the log."""

    def __init__(self, name: str, total_steps: int | None) -> None:
        self.name, self.total_steps = name, total_steps
        self.started_at = self.updated_at = self.spoke_at = time.monotonic()
        self.artifact: UUID | None = None
        if total_steps:
            self.artifact = _uuid(
                create_progress_artifact(
                    0.0, key=_key(name), description=f"steps of {name}, of {total_steps}"
                )
            )

    def __call__(self, beats: list[Beat]) -> None:
        """Where the rank that is furthest behind stands."""
        if self.artifact is None or not self.total_steps or not beats:
            return
        if time.monotonic() - self.updated_at < UPDATE_SECONDS:
            return
        self.updated_at = time.monotonic()
        step = min(beat.step for beat in beats)
        update_progress_artifact(self.artifact, progress=min(100.0 * step / self.total_steps, 100.0))
        if self.updated_at - self.spoke_at >= SPEAK_SECONDS:
            self._speak(step, self.total_steps)

    def _speak(self, step: int, total: int) -> None:
        self.spoke_at = self.updated_at
        left = (self.spoke_at - self.started_at) * (total - step) / step if step else None
        when = f", about {left:.0f} s left" if left is not None else ""
        get_run_logger().info("%s: step %d of %d%s", self.name, step, total, when)


def _show_faults(name: str, outcome: Outcome) -> None:
    if not outcome.faults:
        return
    for fault in outcome.faults:
        get_run_logger().warning("%s: %s", fault.kind, fault.detail)
    rows = [fault.model_dump(mode="json") for fault in outcome.faults]
    create_table_artifact(key=f"{_key(name)}-faults", table=rows, description="; ".join(outcome.incidents))


def _key(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _uuid(made: object) -> UUID:
    assert isinstance(made, UUID), "called from a task, never awaited"
    return made
