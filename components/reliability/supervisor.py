"""Runs a job to its end: watches progress from outside, keeps the evidence, ends the tree, starts again.

Pattern: Supervised Restart
Problem: a crash or hang at night costs the hours until someone looks, and a hasty kill destroys the cause.
Answer: a process outside the job judges its beats, writes the incident down, ends every process, proves it,
and starts again from the newest validated checkpoint, a bounded number of times.
Trade-off: steps since that checkpoint are repeated, and a fault that comes back uses the restarts up.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn

from pydantic import BaseModel

from components.errors import GateRefused, JobFailed, JobStalled
from components.jobs import Handle, Job
from components.plugins import Config, load, name_of
from components.records import Fault
from components.reliability import heartbeat, incidents, stacks
from components.reliability.heartbeat import Beat
from components.reliability.incidents import Incident
from components.reliability.watchdog import Limits, Watchdog

logger = logging.getLogger(__name__)

ENDING_SECONDS = 10.0
"""How long a launcher may take to end the other ranks after one has ended."""

OnProgress = Callable[[list[Beat]], None]


class Outcome(BaseModel):
    """A job that came to its end, and what it took."""

    result: dict[str, Any]
    """What rank 0 left."""
    faults: list[Fault] = []
    restarts: int = 0
    seconds: float = 0.0
    """Wall time from the first launch, restarts included."""
    incidents: list[str] = []
    """Folder of each incident's bundle."""


def supervise(
    job_for: Callable[[int], Job],
    launcher: Config,
    limits: Limits | None = None,
    on_progress: OnProgress | None = None,
    launch: Callable[[Job, Config], Handle] | None = None,
) -> Outcome:
    """Run `job_for(0)`, after a fault `job_for(1)` and so on, until one ends well or restarts are used up.

    `on_progress` sees every look; GateRefused from it is a fault that ends the attempt. However this function
    ends, no process of the job is left. `launch` is that of the launcher's plug-in,
    unless another one is given.
    """
    limits = limits or Limits()
    launch = launch or load("components.launchers", name_of(launcher)).launch
    ledger = Ledger()
    with terminated_means_unwound():
        for attempt in range(limits.max_restarts + 1):
            if attempt:
                time.sleep(limits.backoff_seconds * 2 ** (attempt - 1))
            job = job_for(attempt)
            incident = _attempt(job, launch(job, launcher), limits, ledger, on_progress)
            if incident is None:
                ledger.recovered()
                return ledger.outcome(job, restarts=attempt)
            if attempt == limits.max_restarts:
                _give_up(incident, ledger)
            logger.error("%s; kept in %s; starting again", incident.title, ledger.bundles[-1])
    raise AssertionError("the last attempt returns or raises")


class Ledger:
    """What went wrong so far, and whether it was mended."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.faults: list[Fault] = []
        self.bundles: list[str] = []
        self._open_since: float | None = None

    def add(self, incident: Incident, bundle: str) -> None:
        """A fault that is not mended yet; the time until it is counts from when it was found."""
        self._open_since = incident.found_at
        self.bundles.append(bundle)
        self.faults.append(_fault(incident))

    def moving(self, beats: list[Beat], processes: int) -> None:
        """The restarted job steps again, on every rank."""
        if self._open_since is not None and len(beats) == processes and min(b.step for b in beats) > 0:
            self.recovered()

    def recovered(self) -> None:
        """Close the open fault."""
        if self._open_since is not None:
            taken = time.time() - self._open_since
            mended = {"recovered": True, "seconds_to_recover": taken}
            self.faults[-1] = self.faults[-1].model_copy(update=mended)
            self._open_since = None

    def outcome(self, job: Job, restarts: int) -> Outcome:
        """What the job came to."""
        return Outcome(
            result=job.result(),
            faults=self.faults,
            restarts=restarts,
            seconds=time.monotonic() - self.started,
            incidents=self.bundles,
        )


def _attempt(
    job: Job, handle: Handle, limits: Limits, ledger: Ledger, on_progress: OnProgress | None
) -> Incident | None:
    """One launch, to its end; the tree is gone when this returns or raises."""
    try:
        return _watch(job, handle, limits, ledger, on_progress)
    finally:
        handle.stop()


def _watch(
    job: Job, handle: Handle, limits: Limits, ledger: Ledger, on_progress: OnProgress | None
) -> Incident | None:
    """Look at the beats until the job ends or stands still; what went wrong is written down at once."""
    watchdog = Watchdog(limits, job.processes, time.monotonic())
    while (code := handle.poll()) is None:
        beats = heartbeat.read(job.folder / "beats")
        ledger.moving(beats, job.processes)
        try:
            if on_progress is not None:
                on_progress(beats)
        except GateRefused as refusal:
            return _keep(Incident(job, beats, handle.log_tail(), refusal=str(refusal)), ledger)
        stall = watchdog.look(beats, time.monotonic())
        if stall is not None and not _is_ending(job, handle, beats):
            return _keep(Incident(job, beats, handle.log_tail(), stall), ledger)
        time.sleep(limits.poll_seconds)
    if code == 0 and (job.folder / "result.json").exists():
        return None
    tail = handle.log_tail() if code else "every rank ended without an error, but rank 0 left no result"
    return _keep(Incident(job, heartbeat.read(job.folder / "beats"), tail), ledger)


def _is_ending(job: Job, handle: Handle, beats: list[Beat]) -> bool:
    """Whether a rank has ended and the launcher is about to say so: then it is a crash and no stall."""
    if all(stacks.belongs(beat.pid, job.folder) for beat in beats):
        return False
    deadline = time.monotonic() + ENDING_SECONDS
    while handle.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    return handle.poll() is not None


def _keep(incident: Incident, ledger: Ledger) -> Incident:
    bundle = incidents.write(incident)
    ledger.add(incident, str(bundle))
    return incident


def _fault(incident: Incident) -> Fault:
    """The incident as the record of the stage keeps it."""
    stall, at = incident.stall, datetime.fromtimestamp(incident.found_at, UTC)
    if stall is not None:
        detail = f"{stall.sentence}; confidence {stall.confidence}"
        return Fault(
            kind="stall",
            detail=detail,
            at=at,
            rank=stall.rank,
            step=stall.step,
            seconds_to_detect=stall.seconds,
        )
    if incident.refusal:
        step = max((beat.step for beat in incident.beats), default=None)
        return Fault(kind="corruption", detail=incident.refusal, at=at, step=step)
    named = re.match(r"rank (\d+) ended", incident.log)
    rank = int(named[1]) if named else None
    beat = next((beat for beat in incident.beats if beat.rank == rank), None)
    return Fault(
        kind="crash",
        detail=incident.log,
        at=at,
        rank=rank,
        step=beat.step if beat else None,
        seconds_to_detect=max(0.0, incident.found_at - beat.at) if beat else None,
    )


def _give_up(incident: Incident, ledger: Ledger) -> NoReturn:
    """Restarts are used up."""
    job, bundle, count = incident.job, ledger.bundles[-1], len(ledger.faults)
    stall = incident.stall
    if incident.refusal:
        raise JobFailed(f"{job.name} was ended {count} times; read {bundle}/summary.md. {incident.refusal}")
    if stall is None:
        raise JobFailed(
            f"{job.name} failed {count} times; read {bundle}/summary.md. Last log:\n{incident.log}"
        )
    raise JobStalled(
        f"{job.name} came to a stop {count} times, last: {stall.sentence}; read {bundle}/summary.md",
        rank=stall.rank,
        step=stall.step,
        phase=stall.phase,
    )


@contextmanager
def terminated_means_unwound() -> Iterator[None]:
    """SIGTERM unwinds this process once, so that what it owns is ended first; other handlers stay."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def unwind(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
