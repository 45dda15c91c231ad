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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from components.errors import GateRefused, JobFailed, JobStalled
from components.jobs import Handle, Job
from components.observability import events
from components.plugins import Config, load, name_of
from components.records import Fault
from components.reliability import (
    crashes,
    evidence,
    flight_recorder,
    heartbeat,
    incidents,
    journal,
    preemption,
    stacks,
)
from components.reliability.core_wait import CoreWait
from components.reliability.elastic import Supply
from components.reliability.finding import FIRST, Attempt, Detector, Finding, Sight
from components.reliability.goodput import Window, account
from components.reliability.heartbeat import Beat
from components.reliability.incidents import Incident
from components.reliability.preemption import Handover
from components.reliability.restarts import Again, Ended, Enough, Restarts
from components.reliability.watchdog import Limits, Watchdog

logger = logging.getLogger(__name__)

ENDING_SECONDS = 10.0
"""How long a launcher may take to end the other ranks after one has ended."""

OnProgress = Callable[[list[Beat]], None]
MakeDetectors = Callable[[Job], Sequence[Detector]]
OnFault = Callable[[Fault], None]
PLANNED = ("preemption", "capacity")
"""Ends that were asked for: they use up no restart."""


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
    supply: Supply | None = None,
    on_fault: OnFault | None = None,
) -> Outcome:
    """Run the job of the first attempt, after a fault that of the next, until one ends well or all are used.

    `on_progress` sees every look; GateRefused from it is a fault that ends the attempt. `detectors` makes
    those that watch one attempt beside the watchdog. `supply` says when a job may start and with how many
    ranks, and asks it to part when that changes. `on_fault` hears of each fault when it is found. `launch` is
    that of the launcher's plug-in, unless another one is given. However this function ends, no process of
    the job is left.
    """
    limits = limits or Limits()
    launch = launch or load("components.launchers", name_of(launcher)).launch
    ledger, attempt, restarts = Ledger(on_fault), FIRST, None
    with terminated_means_unwound():
        while True:
            attempt = replace(attempt, processes=supply.wait() if supply else None)
            job = job_for(attempt)
            restarts = restarts or Restarts(limits, seed=str(job.folder))
            launched = ledger.launches(job)
            watch = _Watch(job, launch(job, launcher), limits, ledger, on_progress, detectors, supply)
            finding = watch.to_the_end()
            unplanned = finding is not None and finding.kind not in PLANNED
            ledger.over(Window(launched, time.time(), finding.kind if finding and unplanned else None))
            if finding is None:
                ledger.recovered()
                return ledger.outcome(job, restarts=attempt.number)
            if unplanned:
                _pause(job, restarts.after(watch.ended(finding, launched)), finding, ledger)
            attempt = Attempt(attempt.number + 1, (*attempt.findings, finding))


class Ledger:
    """What went wrong so far, and whether it was mended."""

    def __init__(self, on_fault: OnFault | None = None) -> None:
        self.started = time.monotonic()
        self.on_fault = on_fault
        self.faults: list[Fault] = []
        self.bundles: list[str] = []
        self.windows: list[Window] = []
        self._open_since: float | None = None
        self._folder: Path | None = None

    def launches(self, job: Job) -> float:
        """An attempt begins; the Unix time."""
        self._folder, now = job.folder, time.time()
        journal.write(job.folder, "launched", at=now, processes=job.processes)
        return now

    def over(self, window: Window) -> None:
        """An attempt has come to its end."""
        self.windows.append(window)
        if self._folder is not None:
            journal.write(self._folder, "ended", at=window.ended, fault=window.fault)

    def add(self, finding: Finding, at: float, bundle: str | None = None) -> None:
        """A fault that is not mended yet; the time until it is counts from when it was found."""
        self._open_since = at
        if bundle is not None:
            self.bundles.append(bundle)
        self.faults.append(_fault(finding, at))
        self._say(self.faults[-1])

    def told(self, finding: Finding) -> None:
        """Something that the job goes on with."""
        fault = _fault(finding, time.time()).model_copy(update={"recovered": True})
        self.faults.insert(len(self.faults) - (self._open_since is not None), fault)
        self._say(fault)

    def _say(self, fault: Fault) -> None:
        if self._folder is not None:
            journal.write(self._folder, "fault", fault=fault.kind, rank=fault.rank, step=fault.step)
        if self.on_fault is not None:
            self.on_fault(fault)

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
        supply: Supply | None,
    ) -> None:
        self.job, self.handle, self.limits, self.ledger = job, handle, limits, ledger
        self.on_progress, self.supply = on_progress, supply
        self.watchdog = Watchdog(limits, job.processes, time.monotonic())
        self.core_wait = CoreWait(job.folder)
        self.detectors = list(detectors(job)) if detectors else []
        self.tail = events.Tail(job.folder / "events")

    def to_the_end(self) -> Finding | None:
        """What ended the attempt, its evidence kept; None when it ended well. No process of it is left."""
        try:
            while (code := self._code()) is None:
                if (found := self._look()) is not None and (finding := self._kept(found)) is not None:
                    return finding
                time.sleep(self.limits.poll_seconds)
            return self._ended(code)
        finally:
            self.handle.stop()

    def _code(self) -> int | None:
        """Exit code of the job; that of a failed one once a rank is gone, whatever the others still do."""
        code = self.handle.poll()
        failed = code is None and self._gone(heartbeat.read(self.job.folder / "beats"))
        return 1 if failed and self._launcher_named() is not None else code

    def _ended(self, code: int) -> Finding | None:
        """What it means that the job is over: a launcher that was sent SIGTERM says nothing of its ranks."""
        folder = self.job.folder
        notice, handover = preemption.noticed(folder), preemption.handed_over(folder)
        if (folder / "result.json").exists() and (code == 0 or notice is not None):
            return None
        if handover is not None:
            return self._parted(handover)
        if (found := self._detect(heartbeat.read(folder / "beats"))) is not None:
            return self._kept(found)  # what a rank has said before it ended is more than its exit code
        crash = self._crash(code)
        if notice is not None:
            sentence = f"{notice.why}; it was ended before it had saved. {crash.sentence}"
            crash = replace(crash, kind=notice.kind, sentence=sentence)
        return self._kept(crash)

    def _parted(self, handover: Handover) -> Finding:
        """An end that was asked for, in order; it needs no evidence."""
        notice = handover.notice
        saved = f"saved step {handover.step} {handover.seconds:.1f} s after that, and ended"
        finding = Finding(
            notice.kind,
            f"{notice.why}; all ranks {saved}",
            step=handover.step,
            seconds=0.0,
            advice="nothing, unless it took longer than the grace period.",
            figures={"seconds_to_save": handover.seconds},
        )
        logger.warning("%s: %s", self.job.name, finding.sentence)
        self.ledger.add(finding, notice.at)
        return finding

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
        if self.supply is not None and (wish := self.supply.wish(self.job)) is not None:
            preemption.ask(self.job.folder, wish, "capacity")
        try:
            if self.on_progress is not None:
                self.on_progress(beats)
        except GateRefused as refusal:
            return _refused(refusal, beats)
        if (found := self._detect(beats)) is not None:
            return found
        stall = self.watchdog.look(beats, time.monotonic(), self.core_wait.seconds(beats))
        return None if stall is not None and self._is_ending(beats) else stall

    def _detect(self, beats: list[Beat]) -> Finding | None:
        """The finding of a detector that ends this attempt; the others are told on the way."""
        sight = Sight(beats, self.tail.new() if self.detectors else [], time.monotonic())
        for finding in self._detected(sight):
            if finding.ends:
                return finding
            logger.warning("%s: %s", finding.kind, finding.sentence)
            self.ledger.told(finding)
        return None

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

    def _gone(self, beats: list[Beat]) -> list[int]:
        """Ranks of this machine that have ended before their work was done."""
        ours = self.core_wait.of_this_machine(beats)
        left = [beat for beat in beats if beat.rank in ours and beat.phase != "done"]
        return [beat.rank for beat in left if not stacks.belongs(beat.pid, self.job.folder)]

    def _launcher_named(self) -> int | None:
        """The rank that the launcher saw fail first, once it has."""
        named = re.match(r"rank (\d+) ended", self.handle.log_tail())
        return int(named[1]) if named else None

    def _crash(self, code: int) -> Finding:
        """What the log of the rank says that the crash came from."""
        folder, beats = self.job.folder, heartbeat.read(self.job.folder / "beats")
        logs = {beat.rank: evidence.log(folder, beat.rank) for beat in beats}
        told = flight_recorder.read(folder, logs)
        named = self._launcher_named()
        rank = crashes.cause(named, self._gone(beats), logs, told)
        log = self._log(code) if rank == named else f"rank {rank} ended\n{logs.get(rank or 0, '')[-2000:]}"
        beat = next((beat for beat in beats if beat.rank == rank), None)
        return Finding(
            kind="crash",
            sentence=log.strip(),
            rank=rank,
            step=beat.step if beat else None,
            phase=beat.phase if beat else None,
            seconds=max(0.0, time.time() - beat.at) if beat else None,
        )

    def _log(self, code: int | None) -> str:
        if code == 0:
            return "every rank ended without an error, but rank 0 left no result"
        return self.handle.log_tail()

    def _kept(self, finding: Finding) -> Finding | None:
        """Write the bundle while everything still stands; None when a rank that stood has moved meanwhile."""
        beats, folder, found_at = heartbeat.read(self.job.folder / "beats"), self.job.folder, time.time()
        over = finding.kind in ("crash", *PLANNED)
        there = evidence.left(beats, folder) if over else evidence.gather(beats, folder)
        if finding.kind == "stall" and self._has_moved(finding):
            self.watchdog.excuse(finding)
            logger.info("%s, and then moved on by itself", finding.sentence)
            return None
        finding = evidence.explained(finding, there)
        incident = Incident(self.job, beats, self._log(self.handle.poll()), finding, found_at)
        self.ledger.add(finding, incident.found_at, str(incidents.write(incident, there)))
        return finding

    def _has_moved(self, stalled: Finding) -> bool:
        beats = {beat.rank: beat for beat in heartbeat.read(self.job.folder / "beats")}
        beat = beats.get(stalled.rank) if stalled.rank is not None else None
        return beat is not None and (beat.step, beat.phase) != (stalled.step, stalled.phase)


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


def _pause(job: Job, next_: Again | Enough, finding: Finding, ledger: Ledger) -> None:
    """Before the next attempt; JobFailed or JobStalled when there is to be none."""
    if isinstance(next_, Enough):
        _give_up(job, finding, ledger, next_.why)
    kept, seconds = ledger.bundles[-1], next_.seconds
    logger.error("%s: %s; kept in %s; again in %.1f s", job.name, finding.kind, kept, seconds)
    time.sleep(seconds)


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
