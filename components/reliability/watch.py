"""One attempt of a job, from its launch to its end: who looks at it, what is seen, and what is kept of it.

Each look asks, in this order: has a rank ended, is a checkpoint refused, does a detector find something, does
the job stand still. What ends the attempt is written down while everything still stands.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from components.errors import GateRefused
from components.jobs import Handle, Job
from components.observability import events
from components.reliability import (
    crashes,
    evidence,
    flight_recorder,
    heartbeat,
    incidents,
    preemption,
    stacks,
)
from components.reliability.core_wait import CoreWait
from components.reliability.elastic import Supply
from components.reliability.finding import Detector, Finding, Sight
from components.reliability.heartbeat import Beat
from components.reliability.incidents import Incident
from components.reliability.ledger import Ledger
from components.reliability.preemption import Handover
from components.reliability.restarts import Ended
from components.reliability.watchdog import Limits, Watchdog

logger = logging.getLogger(__name__)

ENDING_SECONDS = 10.0
"""How long a launcher may take to end the other ranks after one has ended."""

OnProgress = Callable[[list[Beat]], None]
MakeDetectors = Callable[[Job], Sequence[Detector]]
PLANNED = ("preemption", "capacity")
"""Ends that were asked for: they use up no restart."""


class Watch:
    """One attempt, from its launch to its end."""

    watchdog: Watchdog

    def __init__(
        self,
        job: Job,
        handle: Handle,
        limits: Limits,
        ledger: Ledger,
        on_progress: OnProgress | None,
        detectors: MakeDetectors | None,
        supply: Supply | None,
        before: Watch | None = None,
    ) -> None:
        self.job, self.handle, self.limits, self.ledger = job, handle, limits, ledger
        self.on_progress, self.supply = on_progress, supply
        pace = before.watchdog.median_step if before and before.job.processes == job.processes else None
        self.watchdog = Watchdog(limits, job.processes, time.monotonic(), pace)
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
            seconds=0.0,  # a notice is known when it is heard, and the fault counts from there
            advice="nothing, unless it took longer than the grace period.",
            figures={"seconds_to_save": handover.seconds},
        )
        logger.warning("%s: %s", self.job.name, finding.sentence)
        self.ledger.add(finding, notice.at)
        return finding

    def ended(self, finding: Finding, launched: float) -> Ended:
        """How far the attempt came that was launched at that Unix time."""
        beats = heartbeat.read(self.job.folder / "beats")
        known = events.read(self.job.folder / "events", rank=0)
        steps = (one for one in known if one["kind"] in events.STEPS and one["at"] >= launched)
        first = next((int(event["step"]) for event in steps), None)
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
        flight_recorder.hear({beat.rank: beat.pid for beat in beats}, folder)
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
