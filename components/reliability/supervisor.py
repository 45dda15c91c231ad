"""Runs a job to its end: watches progress from outside, keeps the evidence, ends the tree, starts again.

Pattern: Supervised Restart
Problem: a crash or hang at night costs the hours until someone looks, and a hasty kill destroys the cause.
Answer: a process outside the job judges its beats, writes the incident down, ends every process, proves it,
and starts again from the newest validated checkpoint, as long as that helps (see `restarts`).
Trade-off: steps since that checkpoint are repeated.
"""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn

from pydantic import BaseModel

from components.errors import GateRefused, JobFailed, JobStalled
from components.jobs import Handle, Job
from components.observability import events
from components.plugins import Config, load, name_of
from components.records import Fault
from components.reliability import evidence, heartbeat, incidents, stacks
from components.reliability.finding import FIRST, Attempt, Detector, Finding, Sight
from components.reliability.goodput import Window, account
from components.reliability.heartbeat import Beat
from components.reliability.incidents import Incident
from components.reliability.restarts import Ended, Enough, Restarts
from components.reliability.watchdog import Limits, Watchdog

logger = logging.getLogger(__name__)

ENDING_SECONDS = 10.0
"""How long a launcher may take to end the other ranks after one has ended."""

OnProgress = Callable[[list[Beat]], None]
MakeDetectors = Callable[[Job], Sequence[Detector]]


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
    goodput: dict[str, float] = {}
    """Seconds of useful steps and of each cause of loss; they sum to `seconds`."""

    @property
    def mttr_seconds(self) -> float | None:
        """Mean time to recovery: from a fault found until every rank stepped again; None without one."""
        taken = [fault.seconds_to_recover for fault in self.faults if fault.seconds_to_recover is not None]
        return sum(taken) / len(taken) if taken else None


def supervise(
    job_for: Callable[[Attempt], Job],
    launcher: Config,
    limits: Limits | None = None,
    on_progress: OnProgress | None = None,
    launch: Callable[[Job, Config], Handle] | None = None,
    detectors: MakeDetectors | None = None,
) -> Outcome:
    """Run the job of the first attempt, after a fault that of the next, until one ends well or all are used.

    `on_progress` sees every look; GateRefused from it is a fault that ends the attempt. `detectors` makes
    those that watch one attempt beside the watchdog. `launch` is that of the launcher's plug-in, unless
    another one is given. However this function ends, no process of the job is left.
    """
    limits = limits or Limits()
    launch = launch or load("components.launchers", name_of(launcher)).launch
    ledger, attempt, restarts = Ledger(), FIRST, Restarts(limits)
    with terminated_means_unwound():
        while True:
            job = job_for(attempt)
            launched = time.time()
            watch = _Watch(job, launch(job, launcher), limits, ledger, on_progress, detectors)
            finding = watch.to_the_end()
            ledger.windows.append(Window(launched, time.time(), finding.kind if finding else None))
            if finding is None:
                ledger.recovered()
                return ledger.outcome(job, restarts=attempt.number)
            next_ = restarts.after(watch.ended(finding, launched))
            if isinstance(next_, Enough):
                _give_up(job, finding, ledger, next_.why)
            kept, pause = ledger.bundles[-1], next_.seconds
            logger.error("%s: %s; kept in %s; again in %.1f s", job.name, finding.kind, kept, pause)
            time.sleep(pause)
            attempt = Attempt(attempt.number + 1, (*attempt.findings, finding))


class Ledger:
    """What went wrong so far, and whether it was mended."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.faults: list[Fault] = []
        self.bundles: list[str] = []
        self.windows: list[Window] = []
        self._open_since: float | None = None

    def add(self, incident: Incident, bundle: str) -> None:
        """A fault that is not mended yet; the time until it is counts from when it was found."""
        self._open_since = incident.found_at
        self.bundles.append(bundle)
        self.faults.append(_fault(incident.finding, incident.found_at))

    def told(self, finding: Finding) -> None:
        """Something that the job goes on with."""
        fault = _fault(finding, time.time()).model_copy(update={"recovered": True})
        self.faults.insert(len(self.faults) - (self._open_since is not None), fault)

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

    @property
    def ended(self) -> int:
        """Attempts that ended badly."""
        return len(self.bundles)

    def outcome(self, job: Job, restarts: int) -> Outcome:
        """What the job came to."""
        return Outcome(
            result=job.result(),
            faults=self.faults,
            restarts=restarts,
            seconds=time.monotonic() - self.started,
            incidents=self.bundles,
            goodput=account(self.windows, events.read(job.folder / "events", rank=0)),
        )


class _Watch:
    """One attempt, from its launch to its end."""

    def __init__(
        self,
        job: Job,
        handle: Handle,
        limits: Limits,
        ledger: Ledger,
        on_progress: OnProgress | None,
        detectors: MakeDetectors | None,
    ) -> None:
        self.job, self.handle, self.limits, self.ledger = job, handle, limits, ledger
        self.on_progress = on_progress
        self.watchdog = Watchdog(limits, job.processes, time.monotonic())
        self.detectors = list(detectors(job)) if detectors else []
        self.tail = events.Tail(job.folder / "events")

    def to_the_end(self) -> Finding | None:
        """What ended the attempt, its evidence kept; None when it ended well. No process of it is left."""
        try:
            while (code := self.handle.poll()) is None:
                if (finding := self._look()) is not None:
                    return self._keep(finding)
                time.sleep(self.limits.poll_seconds)
            if code == 0 and (self.job.folder / "result.json").exists():
                return None
            return self._keep(self._crash(code))
        finally:
            self.handle.stop()

    def ended(self, finding: Finding, launched: float) -> Ended:
        """How far the attempt came that was launched at that Unix time."""
        beats = heartbeat.read(self.job.folder / "beats")
        steps = events.read(self.job.folder / "events", "step", rank=0)
        first = next((int(event["step"]) for event in steps if event["at"] >= launched), None)
        furthest = min((beat.step for beat in beats), default=0) if len(beats) == self.job.processes else 0
        return Ended(finding, time.monotonic(), first, furthest)

    def _look(self) -> Finding | None:
        beats = heartbeat.read(self.job.folder / "beats")
        self.ledger.moving(beats, self.job.processes)
        try:
            if self.on_progress is not None:
                self.on_progress(beats)
        except GateRefused as refusal:
            return _refused(refusal, beats)
        sight = Sight(beats, self.tail.new() if self.detectors else [], time.monotonic())
        for finding in self._detected(sight):
            if finding.ends:
                return finding
            logger.warning("%s: %s", finding.kind, finding.sentence)
            self.ledger.told(finding)
        stall = self.watchdog.look(beats, sight.now)
        return None if stall is not None and self._is_ending(beats) else stall

    def _detected(self, sight: Sight) -> Iterator[Finding]:
        """What detectors find; one that breaks is told and set aside: the job is not at fault."""
        for detector in list(self.detectors):
            try:
                yield from detector.look(sight)
            except Exception:
                logger.exception("%s broke; this attempt goes on without it", type(detector).__name__)
                self.detectors.remove(detector)

    def _is_ending(self, beats: list[Beat]) -> bool:
        """Whether a rank has ended and the launcher is about to say so: then it is a crash and no stall."""
        if all(stacks.belongs(beat.pid, self.job.folder) for beat in beats):
            return False
        deadline = time.monotonic() + ENDING_SECONDS
        while self.handle.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return self.handle.poll() is not None

    def _crash(self, code: int) -> Finding:
        """What the log of the rank that ended first says."""
        log = self._log(code)
        named = re.match(r"rank (\d+) ended", log)
        rank = int(named[1]) if named else None
        beats = heartbeat.read(self.job.folder / "beats")
        beat = next((beat for beat in beats if beat.rank == rank), None)
        return Finding(
            kind="crash",
            sentence=log,
            rank=rank,
            step=beat.step if beat else None,
            phase=beat.phase if beat else None,
            seconds=max(0.0, time.time() - beat.at) if beat else None,
        )

    def _log(self, code: int | None) -> str:
        if code == 0:
            return "every rank ended without an error, but rank 0 left no result"
        return self.handle.log_tail()

    def _keep(self, finding: Finding) -> Finding:
        """Write the bundle while everything still stands."""
        beats, folder = heartbeat.read(self.job.folder / "beats"), self.job.folder
        there = evidence.left(beats, folder) if finding.kind == "crash" else evidence.gather(beats, folder)
        finding = evidence.explained(finding, there)
        incident = Incident(self.job, beats, self._log(self.handle.poll()), finding)
        self.ledger.add(incident, str(incidents.write(incident, there)))
        return finding


def _refused(refusal: GateRefused, beats: list[Beat]) -> Finding:
    """A checkpoint of this attempt holds what no restart should load."""
    return Finding(
        kind="corruption",
        sentence=f"{refusal}; memory holds the same",
        step=max((beat.step for beat in beats), default=None),
        advice="whether it comes back at the same step. Then it is in the data or the code; otherwise a "
        "device has miscomputed, so take its node out.",
    )


def _fault(finding: Finding, at: float) -> Fault:
    """The finding as the record of the stage keeps it."""
    sure = f"; confidence {finding.confidence}" if finding.kind == "stall" else ""
    return Fault(
        kind=finding.kind,
        detail=finding.sentence + sure,
        at=datetime.fromtimestamp(at, UTC),
        rank=finding.rank,
        step=finding.step,
        seconds_to_detect=finding.seconds,
    )


def _give_up(job: Job, finding: Finding, ledger: Ledger, why: str) -> NoReturn:
    """Another restart would not help, or none is left."""
    read = f"{why}; read {ledger.bundles[-1]}/summary.md"
    if finding.kind in ("stall", "collective_mismatch"):
        raise JobStalled(
            f"{job.name} came to a stop {ledger.ended} times, last: {finding.sentence}; {read}",
            rank=finding.rank or 0,
            step=finding.step or 0,
            phase=finding.phase or "start",
        )
    if finding.kind == "crash":
        raise JobFailed(f"{job.name} failed {ledger.ended} times; {read}. Last log:\n{finding.sentence}")
    raise JobFailed(f"{job.name} was ended {ledger.ended} times, last: {finding.sentence}; {read}")


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
