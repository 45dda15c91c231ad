"""The checkpoint that had a name before it had all of its files.

Symptom: after a power cut the job does not come back. `latest` names a checkpoint, the file of one rank is
missing in it, and every restart ends with the same error until a person edits `latest`. Elsewhere retention
had trusted the name too, and deleted the last whole one.

Timeline: all ranks begin to save; one has a slow disk; rank 0 has written its own files and moves `latest`
on; something kills the job before the slow rank is done; the restart reads `latest`.

Cause: the name is published by one rank for itself. DeepSpeed writes `latest` before the barrier at the end
of `save_checkpoint`, without waiting for the others, without a flush to the device and without a rename.

Sources: deepspeedai/DeepSpeed runtime/engine.py, version 0.19.8, `save_checkpoint`;
KempnerInstitute/KempnerForge issue 102 (`latest` advanced before the data was durable, and retention deleted
the last good one); pytorch/torchtitan issue 930.

The drill: two real ranks train under DeepSpeed ZeRO-2; in a save one of them is held up, and every process is
killed with SIGKILL while it is. Once with DeepSpeed's own save, three times at other moments with a staged
commit.
"""

from __future__ import annotations

import math
import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from case_studies._small import DATA, MODEL, WRITES, Line, kept, losses, make_shards, placed, progress
from components.checkpoints.restore import newest_first, open_checkpoint
from components.config import Profile, Run
from components.errors import CheckpointError, JobFailed
from components.jobs import Job
from components.observability import events
from components.records import Artifact, Fault
from components.reliability.faults import Drill, struck_at
from components.reliability.finding import Attempt
from components.reliability.heartbeat import Beat
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import checkpoints_of, job_for

TITLE = "A checkpoint has its name before it has all of its files"
PATTERN = "Staged Commit"
STEPS, SAVED_EVERY, KEPT = 12, 4, 2
HELD_UP_SECONDS = 60
MOMENTS = (
    (8, 1, "save: copied"),  # rank 1 has written nothing, rank 0 all of its own
    (8, 0, "save: sealed"),  # all files and the manifest are there, the name is not
    (12, 0, "save: announced"),  # the name is announced, and nothing lies under it
)
"""Step, rank and point of the save at which one rank is held up and all are killed."""
RUN = Run(
    name="torn-save",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=STEPS, checkpoint_every=SAVED_EVERY, evaluate_every=SAVED_EVERY, held_out_sequences=16
    ),
)
LIMITS = Limits(
    max_restarts=len(MOMENTS), crash_loop_after=len(MOMENTS) + 1, backoff_seconds=0.0, poll_seconds=0.05
)

CHECKLIST = [
    "Every rank writes under a name that no reader looks at, flushes, and reports its digests.",
    "The manifest is written after the last report, the name is given after the manifest, by a rename.",
    "Nothing is named by a rank that knows only of its own files.",
    "Retention deletes an old checkpoint only when a newer one has been validated.",
    "A restart walks back to the newest whole checkpoint by itself; no person edits a pointer.",
    "Jobs are killed on purpose while they save, at every point of the save.",
]
CARRIES_OVER = (
    "yes",
    "Files, names and renames are the same on GPUs; the window grows with the slowest of thousands of "
    "writers. Not measured here: a loss of power, which also loses what was not flushed, and object stores, "
    "which have no rename (there the manifest is put last).",
)
EXPECT: dict[str, Allowed] = {
    "seconds until latest named it": (0, 10),
    "files missing under the name, without": (1, 1),
    "restarts that latest survived": (0, 0),
    "whole checkpoints left if retention trusts latest": (0, 0),
    "kills while saving, with": (len(MOMENTS), len(MOMENTS)),
    "names without all files, with": (0, 0),
    "restarts by itself": (len(MOMENTS), len(MOMENTS)),
    "most steps repeated after a kill": (SAVED_EVERY, 2 * SAVED_EVERY),
    "steps whose loss differs from the uninterrupted run's": (0, 0),
    "last step": (STEPS, STEPS),
}
SCALE = Scale(
    share=(0.0005, 0.03),
    hours_without=(0.5, 12.0),
    hours_with=(0.1, 3.0),
    reasons="The share is that of the time between two saves in which some rank still writes: an assumption, "
    "from 6 seconds of three hours to a minute of half an hour. Without: half an hour until a person has "
    "edited `latest`, or a night, and the interval since the one before. With: minutes to restart, and up to "
    "an interval of three hours to repeat.",
)


@dataclass
class Killer:
    """Kills every rank of a job with SIGKILL while a drill holds one of them up."""

    drill: Drill
    after_seconds: float
    """Since the rank was held up, and since it may be done."""
    ready: Callable[[], bool] = lambda: True
    at: float | None = None
    """Unix time of the kill."""

    def __call__(self, beats: list[Beat]) -> None:
        """Called at each look at the beats."""
        if self.at is None and time.time() > self.struck + self.after_seconds and self.ready():
            self.at = time.time()
            for beat in beats:
                with suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)

    @property
    def struck(self) -> float:
        """Unix time at which the rank was held up; endless while it is not."""
        assert self.drill.once is not None, "every drill here has a marker"
        return struck_at(Path(self.drill.once)) or math.inf


def study(profile: Profile, folder: Path) -> Study:
    """Kill a job in the middle of a save: DeepSpeed's, then a staged one."""
    profile = placed(profile, folder)
    shards = make_shards(RUN, profile)
    without, seen, uninterrupted = _without(profile, shards, folder / "stock")
    with_pattern, measured, faults, interrupted = _with(profile, shards, folder)
    steps = range(1, STEPS + 1)
    differ = sum(uninterrupted.get(step) != interrupted.get(step) for step in steps)
    numbers = seen | measured | {"steps whose loss differs from the uninterrupted run's": float(differ)}
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=faults,
        verdict=f"`latest` named a checkpoint {1000 * numbers['seconds until latest named it']:.0f} ms after "
        "rank 1 had been held up, without its file, and no restart survived it. A staged save was killed at "
        f"{len(MOMENTS)} points: each time the job went on from the one before, and all {STEPS} losses are "
        "the uninterrupted run's to the last bit.",
        notes=[
            "The uninterrupted run is the one without the pattern: its steps are done when its last save is "
            "killed.",
            "Held up is rank 1 before it writes; with the pattern also rank 0 once the manifest is sealed, "
            "and once the name is announced. The wait before the kill is drawn with the run's seed.",
            "A staged save runs beside training: steps done while a rank is held up are repeated too.",
        ],
    )


def _without(
    profile: Profile, shards: Artifact, folder: Path
) -> tuple[Side, dict[str, float], dict[int, float]]:
    """DeepSpeed's own save, rank 1 on a slow disk, and the restart."""
    checkpoints, started = folder / "checkpoints", time.time()
    tag, latest = f"step-{STEPS:06d}", checkpoints / "latest"
    killer = Killer(
        _held_up(STEPS, 1, WRITES, folder.with_name("stock-held-up")),
        after_seconds=_drawn(0),
        ready=lambda: latest.exists() and latest.read_text() == tag,
    )
    job = job_for(RUN, profile, shards)
    job = replace(
        job,
        target="case_studies._stock_train",
        settings={**job.settings, "stock": {"folder": str(checkpoints), "keep": KEPT}},
        folder=folder / "job",
    )
    _fails(replace(job, environment=killer.drill.environment), profile, killer)
    assert killer.at is not None, "it fails for no other reason"
    named, killed = latest.stat().st_mtime - killer.struck, killer.at - started
    missing = _missing(checkpoints)
    error = _fails(job, profile)
    whole = [name for name in missing if not missing[name]]
    line, ended = progress(job, started), time.time() - started
    side = Side(
        summary=f"`latest` named step {STEPS} while the file of rank 1 was not there. Every restart ends "
        f"with {error}. {' and '.join(whole)} lie beside it until retention trusts the name, and no restart "
        "looks at them until a person edits it.",
        spans=[
            Span(start=0, end=line[0][0], state="starting", text="starts"),
            Span(start=line[0][0], end=killed, state="healthy", text="trains, saves"),
            Span(start=killed, end=ended, state="harmed", text="restarts, fails"),
        ],
        events=[
            Event(at=killed, text=f"killed; latest names step {STEPS}", kind="fault"),
            Event(at=ended, text="a file is missing", kind="blind"),
        ],
        progress=line,
    )
    numbers = {
        "seconds until latest named it": max(0.0, named),
        "files missing under the name, without": float(missing[tag]),
        "restarts that latest survived": 0.0 if error else 1.0,
        "whole checkpoints left if retention trusts latest": float(tag in whole),
    }
    return side, numbers, losses(job)


def _held_up(step: int, rank: int, point: str, marker: Path) -> Drill:
    return Drill(kind="sleep", rank=rank, step=step, phase=point, seconds=HELD_UP_SECONDS, once=str(marker))


def _drawn(kill: int) -> float:
    """Seconds between the moment and the kill."""
    return random.Random(RUN.seed + kill).uniform(0.2, 1.5)


def _fails(job: Job, profile: Profile, killer: Killer | None = None) -> str:
    """The kind of error that a job ends with; empty when it does not."""
    try:
        supervise(lambda _: job, profile.launcher, LIMITS.model_copy(update={"max_restarts": 0}), killer)
    except JobFailed as failed:
        found = re.findall(r"^(?:\[rank\d\]: ?)?(\w+(?:Error|Exception)\b)", str(failed), re.MULTILINE)
        return found[-1] if found else "no word of its own"
    return ""


def _missing(checkpoints: Path) -> dict[str, int]:
    """How many ranks' files each checkpoint lacks."""
    return {folder.name: 2 - len(list(folder.glob("*optim_states.pt"))) for folder in kept(checkpoints)}


def _with(
    profile: Profile, shards: Artifact, folder: Path
) -> tuple[Side, dict[str, float], list[Fault], dict[int, float]]:
    """The same job with its own saver, killed at three points, supervised."""
    checkpoints, started = checkpoints_of(RUN, profile), time.time()
    killers = [
        Killer(_held_up(*moment, folder / f"held-up-{kill}"), after_seconds=_drawn(kill))
        for kill, moment in enumerate(MOMENTS)
    ]
    torn: list[str] = []
    jobs: list[Job] = []

    def attempt(next_: Attempt) -> Job:
        torn.extend(_torn(checkpoints))
        job, number = job_for(RUN, profile, shards, next_), next_.number
        drill = killers[number].drill.environment if number < len(killers) else {}
        jobs.append(replace(job, environment=drill))
        return jobs[-1]

    def look(beats: list[Beat]) -> None:
        for killer in killers[len(jobs) - 1 : len(jobs)]:
            killer(beats)

    outcome = supervise(attempt, profile.launcher, LIMITS, look)
    torn.extend(_torn(checkpoints))
    job, ended = jobs[-1], time.time() - started
    kills = [killer.at - started for killer in killers if killer.at is not None]
    line = progress(job, started)
    numbers = {
        "kills while saving, with": float(len(kills)),
        "names without all files, with": float(len(torn)),
        "restarts by itself": float(outcome.restarts),
        "most steps repeated after a kill": max(
            map(float, _repeated(job, line, kills, started)), default=0.0
        ),
        "last step": float(outcome.result["step"]),
    }
    return _staged(line, kills, ended, numbers), numbers, _faults(outcome), losses(job)


def _torn(checkpoints: str) -> list[str]:
    """Names that readers look at, under which something is missing or different."""
    found = []
    for url in newest_first(checkpoints):
        try:
            open_checkpoint(url, accept=("committed", "validated"))
        except CheckpointError:
            found.append(url)
    return found


def _repeated(job: Job, line: Line, kills: list[float], started: float) -> list[int]:
    """Steps done before each kill that were done again after it."""
    resumed = [event for event in events.read(job.folder / "events", "resume", rank=0)]
    return [
        int(max(step for at, step in line if at <= kill))
        - next(event["step"] for event in resumed if event["at"] - started > kill)
        for kill in kills
    ]


def _staged(line: Line, kills: list[float], ended: float, numbers: dict[str, float]) -> Side:
    """The side with the pattern, as it is drawn."""
    spans, begun = [], 0.0
    for until in (*kills, ended):
        first = next(at for at, _ in line if at > begun)
        text = "restarts" if begun else "starts"
        spans += [
            Span(start=begun, end=first, state="recovering" if begun else "starting", text=text),
            Span(start=first, end=until, state="healthy", text="trains"),
        ]
        begun = until
    return Side(
        summary=f"Killed {len(kills)} times while it saved: what was being written had no name yet. Each "
        f"restart went on from the newest whole checkpoint and repeated at most "
        f"{int(numbers['most steps repeated after a kill'])} steps.",
        spans=spans,
        events=[
            *(
                Event(at=at, text=f"killed, {point.partition(': ')[2]}", kind="fault")
                for at, (_, _, point) in zip(kills, MOMENTS, strict=False)
            ),
            Event(at=ended, text=f"step {STEPS}, the same losses", kind="mended"),
        ],
        progress=line,
    )


def _faults(outcome: Outcome) -> list[Fault]:
    """The kills as the supervisor met them, each with the moment that it does not know."""
    return [
        fault.model_copy(
            update={"step": step, "detail": f"killed while saving step {step}: rank {rank} at '{point}'"}
        )
        for fault, (step, rank, point) in zip(outcome.faults, MOMENTS, strict=True)
    ]
