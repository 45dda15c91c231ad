"""Runs a job to its end: watches progress from outside, keeps the evidence, ends the tree, starts again.

Pattern: Supervised Restart
Problem: a crash or hang at night costs the hours until someone looks, and a hasty kill destroys the cause.
Answer: a process outside the job judges its beats, writes the incident down, ends every process, proves it,
and starts again from the newest validated checkpoint, as long as that helps (see `restarts`).
Trade-off: steps since that checkpoint are repeated.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from components.errors import JobFailed, JobStalled
from components.jobs import Handle, Job
from components.plugins import Config, load, name_of
from components.reliability.elastic import Supply
from components.reliability.finding import FIRST, Attempt, Finding
from components.reliability.goodput import Window
from components.reliability.ledger import Ledger, OnFault, Outcome
from components.reliability.restarts import Again, Enough, Restarts
from components.reliability.watch import PLANNED, MakeDetectors, OnProgress, Watch
from components.reliability.watchdog import Limits

logger = logging.getLogger(__name__)


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
    ledger, attempt, restarts, watch = Ledger(on_fault), FIRST, None, None
    with terminated_means_unwound():
        while True:
            attempt = replace(attempt, processes=supply.wait() if supply else None)
            job = job_for(attempt)
            restarts = restarts or Restarts(limits, seed=str(job.folder))
            launched = ledger.launches(job)
            watch = Watch(job, launch(job, launcher), limits, ledger, on_progress, detectors, supply, watch)
            finding = watch.to_the_end()
            unplanned = finding is not None and finding.kind not in PLANNED
            ledger.over(Window(launched, time.time(), finding.kind if finding and unplanned else None))
            if finding is None:
                ledger.recovered()
                return ledger.outcome(job, restarts=attempt.number)
            if unplanned:
                _pause(job, restarts.after(watch.ended(finding, launched)), finding, ledger)
            attempt = Attempt(attempt.number + 1, (*attempt.findings, finding))


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
