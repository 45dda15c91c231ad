"""A spot machine that is taken three times in a night, and a job that waits for it or goes on without it.

Symptom: progress is a sawtooth. Each time a machine is taken the job falls back to its last checkpoint, and
while one machine of many is missing all the others stand idle, paid for, until it comes back.

Timeline: the cloud says half a minute ahead that it takes a machine (SIGTERM, a metadata address); nothing in
the job listens, or the default handler ends the process at once; the steps since the last checkpoint are
gone; the optimizer's state is cut for as many ranks as there were, so no restart with fewer; hours later the
machine is back, the job starts again, and the next one is taken, this time without a word.

Cause: a notice that nobody hears, and a checkpoint that only one number of ranks can load.

Sources: skypilot-org/spot-traces (a single spot machine of us-east-1f was lost every 2.3 hours, one of
us-west-2b every 10.5; four of us-west-2c were all there 79 % of the time, sixteen of us-west-2a 42 %);
bigscience train/tr11-176B-ml/chronicles.md, 2022-03-21 (7.3 hours lost, two iterations before a checkpoint);
huggingface/transformers issue 40245 (4 of 16 samples lost when a run goes on with other ranks).

The drill: two real ranks train under torchrun. At one step a machine is taken with notice, SIGTERM to
torchrun, and comes back some time later; at another one both ranks are killed without any. One side restarts
from DeepSpeed's own periodic checkpoint, when there are two machines again; the other one hears notices and
takes what room there is, 2 -> 1 -> 2 ranks, and writes down every row of tokens that it trains on.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import psutil

from case_studies._small import DATA, MODEL, Line, make_shards, placed, progress
from case_studies._witnessed_train import place, rows
from components.config import Profile, Run
from components.data.reader import Reader
from components.data.stream import TokenStream
from components.errors import StanchionError
from components.jobs import Job
from components.records import Artifact, Fault
from components.reliability import goodput
from components.reliability.elastic import Config as Elastic
from components.reliability.elastic import Supply
from components.reliability.finding import Attempt, Finding
from components.reliability.heartbeat import Beat
from components.reliability.preemption import Config as Preemption
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import job_for, numbers_of_ranks

TITLE = "Each machine that is taken costs half an interval, and all wait for the one that is missing"
PATTERN = "Checkpoint on Notice"
PATTERNS = ["Checkpoint on Notice", "Elastic Capacity", "Restart Budget"]
STEPS, SAVED_EVERY = 240, 50
TAKEN_AT, ALONE, KILLED_AT = 80, 60, 190
"""Step at which one machine is taken with notice, steps that the job makes on the other one until it is back,
step at which all are killed without."""
RUN = Run(
    name="preemption-storm",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=STEPS,
        batch_size=32,
        checkpoint_every=SAVED_EVERY,
        evaluate_every=SAVED_EVERY,
        held_out_sequences=16,
    ),
)
LIMITS = Limits(backoff_seconds=0.0, poll_seconds=0.05)

CHECKLIST = [
    "A notice reaches every rank before the machine is gone: SIGTERM, a file or a metadata address.",
    "Ranks agree on one step before any of them saves.",
    "The grace period is longer than a step, an evaluation and a save; each handover says what it took.",
    "The scheduler knows the grace period: `--signal` under Slurm, terminationGracePeriodSeconds in pods.",
    "A checkpoint loads with another number of ranks, and data goes on at the very next sample.",
    "A planned end uses up no restart.",
]
CARRIES_OVER = (
    "yes",
    "Notices come to the host, the flag rides on a collective that each step has, and the state is laid out "
    "anew from the same checkpoint on GPUs. What changes is the balance: a save of terabytes may not fit "
    "into a grace period of 30 seconds. Not measured here: such a save, and a cloud's own agent.",
)
EXPECT: dict[str, Allowed] = {
    "steps lost with notice, without": (10, SAVED_EVERY + 20),
    "steps lost with notice, with": (0, 1),
    "steps lost when a machine came back, with": (0, 1),
    "steps lost without notice, without": (0, SAVED_EVERY + 20),
    "steps lost without notice, with": (0, 2 * SAVED_EVERY),
    "seconds from notice to checkpoint": (0, 30),
    "seconds idle while a machine was away, without": (1, None),
    "steps made on what was left, with": (ALONE, None),
    "attempts with two ranks, with": (3, 3),
    "attempts with one rank, with": (1, 1),
    "rows trained on that one reader has not": (0, 0),
    "rows of one reader not trained on": (0, 0),
    "share of useful time, without": (0, 1),
    "share of useful time, with": (0, 1),
    "last step, without": (STEPS, STEPS),
    "last step, with": (STEPS, STEPS),
}
SCALE = Scale(
    share=(0.5, 1.0),
    hours_without=(0.3, 4.0),
    hours_with=(0.05, 0.3),
    reasons="A job on spot machines is ended by preemption more often than by all else: half to all of its "
    "ends, and at least as many as the failure rates here. Without: half an interval of half an hour and a "
    "restart, or the hours until as many machines are there again. With: a save and a restart of minutes, "
    "for which 1,024 GPUs stand; the machines that are missing are not counted on either side.",
)


class Cloud:
    """Takes and gives machines, by what it sees of a job's steps; called at each look at the beats."""

    def __init__(self, capacity: Path) -> None:
        self.capacity = capacity
        self.taken_at = self.back_at = self.killed_at = 0.0
        """Unix times; 0 while it has not happened."""
        self.taken_step = self.killed_step = 0
        capacity.write_text("2")

    def __call__(self, beats: list[Beat]) -> None:
        """What is due now."""
        step = min((beat.step for beat in beats), default=0)
        if not self.taken_at and step >= TAKEN_AT and len(beats) == 2:
            self.taken_at, self.taken_step = time.time(), step
            self.capacity.write_text("1")
            os.kill(psutil.Process(beats[0].pid).ppid(), signal.SIGTERM)
        elif self.taken_at and not self.back_at and self.is_back(beats):
            self.back_at = time.time()
            self.capacity.write_text("2")
        elif self.back_at and not self.killed_at and step >= KILLED_AT and len(beats) == 2:
            self.killed_at, self.killed_step = time.time(), step
            for beat in beats:
                with suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)

    def is_back(self, beats: Sequence[Beat]) -> bool:
        """Once the job has made so many steps alone."""
        return len(beats) == 1 and beats[0].step >= self.taken_step + ALONE


class Timed(Cloud):
    """One whose machine is away for a given time."""

    def __init__(self, capacity: Path, away_seconds: float) -> None:
        super().__init__(capacity)
        self.away_seconds = away_seconds

    def is_back(self, beats: Sequence[Beat]) -> bool:
        """By the clock."""
        return time.time() >= self.taken_at + self.away_seconds

    def wait(self) -> None:
        """As a job that must have both machines does."""
        while self.taken_at and not self.back_at:
            self([])
            time.sleep(0.05)


def study(profile: Profile, folder: Path) -> Study:
    """The storm on the side that hears and adapts; then one as long on the side that does neither."""
    shards = make_shards(RUN, placed(profile, folder))
    with_pattern, measured, faults, away = _with(placed(profile, folder / "with"), shards, folder)
    without, seen = _without(placed(profile, folder / "without"), shards, folder, away)
    numbers = seen | measured
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=faults,
        verdict=f"Unheard, the notice cost {int(numbers['steps lost with notice, without'])} steps and "
        f"{numbers['seconds idle while a machine was away, without']:.0f} s without any; heard, it cost "
        f"{int(numbers['steps lost with notice, with'])}, and the job made "
        f"{int(numbers['steps made on what was left, with'])} steps on the machine that was left. From 2 to "
        "1 to 2 ranks no row was lost or repeated.",
        notes=[
            "The side without restarts by itself too, which not every stock job does.",
            "A start takes as long here as hundreds of steps, and the side with the pattern starts once "
            "more: shares of useful time are those of a toy; steps and seconds lost are what carries over.",
        ],
    )


class _Told:
    """What a side was, attempt by attempt."""

    def __init__(self) -> None:
        self.started = time.time()
        self.jobs: list[Job] = []
        self.launches: list[float] = []
        self.findings: tuple[Finding, ...] = ()

    def starts(self, job: Job, attempt: Attempt) -> Job:
        """An attempt is about to be launched."""
        self.jobs.append(job)
        self.launches.append(time.time() - self.started)
        self.findings = attempt.findings
        return job

    def ended(self) -> None:
        """The job came to its end."""
        self.seconds = time.time() - self.started
        self.line = progress(self.jobs[-1], self.started)

    def steps_of(self, number: int) -> Line:
        """Those of one attempt."""
        until = [*self.launches, self.seconds][number + 1]
        return [point for point in self.line if self.launches[number] <= point[0] < until]

    def lost(self, number: int) -> int:
        """Steps of an attempt that the next one did again."""
        return int(self.steps_of(number)[-1][1] + 1 - self.steps_of(number + 1)[0][1])

    def spans(self) -> list[Span]:
        """Starting, training, and what lies between."""
        found, until = [], 0.0
        for number, launched in enumerate(self.launches):
            steps, ranks = self.steps_of(number), self.jobs[number].processes
            first, last = steps[0][0], steps[-1][0]
            if number:
                found.append(Span(start=until, end=launched, state="harmed", text="waits"))
            state: Literal["starting", "recovering"] = "recovering" if number else "starting"
            found.append(Span(start=launched, end=first, state=state, text="starts"))
            found.append(
                Span(start=first, end=last, state="healthy", text=f"{ranks} rank{'s' if ranks > 1 else ''}")
            )
            until = last
        return found


def _with(
    profile: Profile, shards: Artifact, folder: Path
) -> tuple[Side, dict[str, float], list[Fault], float]:
    """Notices are heard, and ranks follow the capacity."""
    cloud, told = Cloud(folder / "capacity-with"), _Told()
    elastic = Elastic(most=2, capacity=str(cloud.capacity), poll_seconds=0.2, settle_seconds=0.5)
    supply = Supply(profile.reliability.preemption, elastic, numbers_of_ranks(RUN, profile))

    def attempt(next_: Attempt) -> Job:
        job = replace(job_for(RUN, profile, shards, next_), target="case_studies._witnessed_train")
        return told.starts(job, next_)

    outcome = supervise(attempt, profile.launcher, LIMITS, cloud, supply=supply)
    told.ended()
    kinds = [finding.kind for finding in told.findings]
    if kinds != ["preemption", "capacity", "crash"]:
        raise StanchionError(f"a notice, a machine that is back and a kill were to end attempts: {kinds}")
    heard, asked, _ = told.findings
    surplus, lacking = _compared(told.jobs[-1], shards)
    numbers = {
        "steps lost with notice, with": float(told.lost(0)),
        "steps lost when a machine came back, with": float(told.lost(1)),
        "steps lost without notice, with": float(told.lost(2)),
        "seconds from notice to checkpoint": max(one.figures["seconds_to_save"] for one in (heard, asked)),
        "steps made on what was left, with": float(len(told.steps_of(1))),
        "attempts with two ranks, with": float([job.processes for job in told.jobs].count(2)),
        "attempts with one rank, with": float([job.processes for job in told.jobs].count(1)),
        "rows trained on that one reader has not": float(surplus),
        "rows of one reader not trained on": float(lacking),
        "share of useful time, with": goodput.share_useful(outcome.goodput),
        "last step, with": float(outcome.result["step"]),
    }
    side = Side(
        summary=f"The notice was heard: all ranks saved step {heard.step} and ended, and one rank went on "
        f"with the next one. When there was room for two again they took over at step {asked.step}. The kill "
        f"without a notice cost {told.lost(2)} steps.",
        spans=told.spans(),
        events=[
            Event(at=cloud.taken_at - told.started, text="one machine is taken", kind="fault"),
            Event(at=told.steps_of(1)[0][0], text="goes on with one rank", kind="mended"),
            Event(at=cloud.back_at - told.started, text="it is back", kind="seen"),
            Event(at=cloud.killed_at - told.started, text="killed without notice", kind="fault"),
        ],
        progress=told.line,
    )
    return side, numbers, outcome.faults, cloud.back_at - cloud.taken_at


def _without(profile: Profile, shards: Artifact, folder: Path, away: float) -> tuple[Side, dict[str, float]]:
    """SIGTERM kills, and DeepSpeed's last checkpoint loads with two ranks or not at all."""
    deaf = profile.reliability.model_copy(update={"preemption": Preemption(enabled=False)})
    profile = profile.model_copy(update={"reliability": deaf})
    cloud, told = Timed(folder / "capacity-without", away), _Told()

    def attempt(next_: Attempt) -> Job:
        cloud.wait()
        job = job_for(RUN, profile, shards, next_)
        settings = {**job.settings, "stock": {"folder": str(folder / "stock")}}
        return told.starts(replace(job, target="case_studies._stock_train", settings=settings), next_)

    outcome = supervise(attempt, profile.launcher, LIMITS, cloud)
    told.ended()
    idle = told.launches[1] + told.started - cloud.taken_at
    side = Side(
        summary=f"SIGTERM ended the ranks at once and {told.lost(0)} steps were gone. For {idle:.0f} s the "
        f"machine that was left stood idle, then two ranks went on from the last checkpoint. The kill "
        f"without a notice cost {told.lost(1)} steps more.",
        spans=told.spans(),
        events=[
            Event(at=cloud.taken_at - told.started, text="one machine is taken", kind="fault"),
            Event(at=cloud.back_at - told.started, text="it is back", kind="seen"),
            Event(at=cloud.killed_at - told.started, text="killed without notice", kind="fault"),
        ],
        progress=told.line,
    )
    return side, {
        "steps lost with notice, without": float(told.lost(0)),
        "steps lost without notice, without": float(told.lost(1)),
        "seconds idle while a machine was away, without": idle,
        "share of useful time, without": goodput.share_useful(outcome.goodput),
        "last step, without": float(outcome.result["step"]),
    }


def _compared(job: Job, shards: Artifact) -> tuple[int, int]:
    """Rows that ranks trained on, each step as it was done last, against one process that reads the data set.

    How many there are too many, and how many too few.
    """
    trained: dict[tuple[int, int], list[str]] = {}
    for rank in range(2):
        for line in place(job.folder, rank).read_text().splitlines():
            step, seen = json.loads(line)
            trained[rank, step] = seen
    consumed = Counter((step, row) for (_, step), seen in trained.items() for row in seen)
    with Reader(shards.url) as reader:
        stream = TokenStream(
            reader,
            "train",
            sequence_length=RUN.model.context_length,
            batch_size=RUN.training.batch_size,
            seed=RUN.seed,
        )
        wanted = Counter((step + 1, row) for step in range(STEPS) for row in rows(stream.batch(step)))
    return (consumed - wanted).total(), (wanted - consumed).total()
