"""Prometheus metrics of every job below a folder, for a scraper outside the ranks.

    with serving(Path("runs"), port=9464): ...            # or: stanchion metrics runs

Pattern: Metrics from the Event Log
Problem: a metrics server in every rank costs steps, opens a port each, and dies with what it should tell of.
Answer: ranks append a line a step; one process outside reads what is new when it is scraped, and goes on
telling of a job that hangs, has crashed or is over.
Trade-off: the exporter must see the job's folder, and a figure is as old as the rank's last step.

A rank has a series a metric and one a phase, a job one a kind or cause: at 1,024 ranks a scrape stays below
2 MB (`tests/test_metrics.py`). How long it took to read is a metric of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from components.errors import ConfigError
from components.observability.metrics import names
from components.observability.metrics.watched_job import WatchedJob

DEPTHS = ("beats", "*/beats", "*/*/beats", "*/*/*/beats")
"""Where job folders lie below a job, a run or the root of all runs."""
SEARCH_SECONDS = 10.0
FORGET_SECONDS = 86_400.0
"""A job without a sign for so long is no longer told of: series of old runs would never end."""
PORT = 9464
logger = logging.getLogger(__name__)


class Exporter(Collector):
    """The jobs below a folder; a scrape reads what is new."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._jobs: dict[Path, WatchedJob] = {}
        self._searched = float("-inf")
        self._one_at_a_time = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        with self._one_at_a_time:
            began = time.perf_counter()
            jobs, unreadable = self._look()
            spent = time.perf_counter() - began
            told = [*_of_ranks(jobs), *_of_jobs(jobs)]
        yield from told
        for (name, says), value in (
            (names.JOBS, len(jobs)),
            (names.READING, spent),
            (names.ERRORS, unreadable),
        ):
            yield GaugeMetricFamily(name, says, value=value)

    def _look(self) -> tuple[list[WatchedJob], int]:
        """Jobs that gave a sign in the last day, and how many could not be read."""
        self._search()
        since = time.time() - FORGET_SECONDS
        read, unreadable = [], 0
        for folder, job in list(self._jobs.items()):
            if not (folder / "beats").is_dir():
                del self._jobs[folder]
                continue
            try:
                job.look(since)
            except Exception:
                logger.exception("%s could not be read", folder)
                unreadable += 1
            else:
                read.append(job)
        return [job for job in read if job.last_sign >= since], unreadable

    def _search(self) -> None:
        if time.monotonic() - self._searched < SEARCH_SECONDS:
            return
        self._searched = time.monotonic()
        for depth in DEPTHS:
            for beats in self.root.glob(depth):
                folder = beats.parent
                if folder not in self._jobs:
                    self._jobs[folder] = WatchedJob(folder, _name(folder, self.root))


@contextmanager
def serving(root: Path, *, port: int = PORT, address: str = "127.0.0.1") -> Iterator[int]:
    """Serve /metrics of the jobs below a folder until the block ends; the port, a free one for 0."""
    registry = CollectorRegistry()
    registry.register(Exporter(root))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise ConfigError(f"--port {port} on {address}: {error.strerror}; choose another --port") from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _of_ranks(jobs: Iterable[WatchedJob]) -> list[Metric]:
    """Only ranks of the running attempt: one with fewer ranks leaves no others behind."""
    by, labels = ["job", "rank"], ["job", "rank", "phase"]
    step, progress = (GaugeMetricFamily(*one, labels=by) for one in (names.STEP, names.PROGRESS))
    steps, waits = (CounterMetricFamily(*one, labels=by) for one in (names.STEPS, names.WAITS))
    phases = CounterMetricFamily(*names.PHASES, labels=labels)
    last = {field: GaugeMetricFamily(name, says, labels=by) for name, (field, says) in names.OF_STEP.items()}
    for job in jobs:
        for beat in job.beats:
            key, rank = [job.name, str(beat.rank)], job.ranks[beat.rank]
            step.add_metric(key, beat.step)
            progress.add_metric(key, beat.at)
            steps.add_metric(key, rank.steps)
            waits.add_metric(key, rank.waited)
            for phase, seconds in rank.seconds.items():
                phases.add_metric([*key, phase], seconds)
            for field, family in last.items():
                if isinstance(value := rank.step.get(field), (int, float)):
                    family.add_metric(key, value)
    return [step, progress, steps, waits, phases, *last.values()]


def _of_jobs(jobs: Iterable[WatchedJob]) -> list[Metric]:
    now = (names.RUNNING, names.FAILED, names.RANKS, names.EXPECTED)
    gauges = {one: GaugeMetricFamily(*one, labels=["job"]) for one in now}
    saved = {
        names.HELD_OUT: ("evaluate", "held_out_loss"),
        names.SAVED_STEP: ("checkpoint", "step"),
        names.SAVED_AT: ("checkpoint", "at"),
        names.STALL: ("checkpoint", "seconds_stalled"),
        names.SAVE: ("checkpoint", "seconds_to_save"),
    }
    told = {one: GaugeMetricFamily(*one, labels=["job"]) for one in saved}
    counted = {names.SKIPPED: "skipped_step", names.FAILED_SAVES: "checkpoint_failed"}
    counters = {one: CounterMetricFamily(*one, labels=["job"]) for one in (names.RESTARTS, *counted)}
    incidents = CounterMetricFamily(*names.INCIDENTS, labels=["job", "kind"])
    goodput = GaugeMetricFamily(*names.GOODPUT, labels=["job", "cause"])
    for job in jobs:
        key = [job.name]
        for one, value in zip(now, (job.runs, job.failed, len(job.beats), job.expected), strict=True):
            gauges[one].add_metric(key, value)
        for one, (kind, field) in saved.items():
            if kind in job.last:
                told[one].add_metric(key, job.last[kind][field])
        counters[names.RESTARTS].add_metric(key, job.restarts)
        for one, kind in counted.items():
            counters[one].add_metric(key, job.counts[kind])
        for kind in dict.fromkeys([*names.KINDS, *job.faults]):
            incidents.add_metric([*key, kind], job.faults.get(kind, 0))
        for cause, seconds in job.goodput().items():
            goodput.add_metric([*key, cause], seconds)
    return [*gauges.values(), *told.values(), *counters.values(), incidents, goodput]


def _name(folder: Path, root: Path) -> str:
    """`demo-1a2b/pretrain`: the run and the job in it, wherever above it the watched folder lies."""
    whole = folder.absolute()
    if whole.parent.name == "scratch":
        return f"{whole.parents[1].name}/{whole.name}"
    return "/".join(folder.relative_to(root).parts) or whole.name
