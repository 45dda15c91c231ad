"""What became of a job: its faults and how long each was open, its attempts, and what it came to at last."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from components.jobs import Job
from components.observability import events
from components.records import Fault
from components.reliability import journal
from components.reliability.finding import Finding
from components.reliability.goodput import Window, account
from components.reliability.heartbeat import Beat

OnFault = Callable[[Fault], None]


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
