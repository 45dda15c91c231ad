"""The job that stood still while every worker looked healthy.

Symptom: a training job on 512 accelerators stood for 33.5 minutes while all of its processes sent
heartbeats ("phase=training") and every device showed 100 % use. Another one stood for more than four days.
Nobody was paged, because liveness is what was watched, and everything was alive.

Timeline: one rank blocks (a read that never returns, a deadlock in a loader worker); the others reach the
next collective and wait in it; a wait there looks like work; the collective's own limit is 30 minutes by
default on gloo and names nobody; a restart without the stacks destroys the cause, and the stall comes back.

Cause: existence was taken for progress. A step counter that stands still is the only honest signal, and the
rank that is furthest behind is the one that all others wait for.

Sources: marin-community/marin issue 7344 (33.5 minutes, 512 devices); PrimeIntellect-ai/prime-rl pull 2142
(four days); bigscience train/tr11-176B-ml/chronicles.md, 2022-04-30 (about 18 hours, no step, no time-out).

The drill: two real ranks train under torchrun; rank 1 goes to sleep in the data phase of step 26.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from case_studies._small import DATA, MODEL, make_shards, placed, progress, until
from components import storage
from components.config import Profile, Run
from components.errors import StanchionError
from components.jobs import Handle, Job
from components.plugins import load, name_of
from components.records import Artifact
from components.reliability import heartbeat
from components.reliability.faults import Drill, struck_at
from components.reliability.finding import FIRST, Attempt
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import job_for

TITLE = "Every worker is healthy and nothing moves"
PATTERN = "Heartbeat by Progress"
STRIKES_AT, SAVED_EVERY = 26, 10
RUN = Run(
    name="silent-stall",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=40,
        checkpoint_every=SAVED_EVERY,
        evaluate_every=SAVED_EVERY,
        held_out_sequences=16,
        timeout_seconds=1800,  # what gloo waits by default, and what the incident rested on
    ),
)
LIMITS = Limits(step_factor=3.0, floor_seconds=2.0, backoff_seconds=0.0)
WATCHED_SECONDS = 12.0
START_SECONDS = 240.0

CHECKLIST = [
    "The step count of every rank is watched from outside the job, not only whether its process exists.",
    "A limit follows the pace of the run; start, evaluation, rollout and checkpoint have their own.",
    "An alarm names one rank, its step, its phase, and how sure the name is.",
    "Stacks of all ranks are kept before anything is killed.",
    "The whole process tree is gone before a restart, also ranks in sessions of their own.",
    "The restart goes on from the newest validated checkpoint, without a human.",
    "The drill is run on a schedule, and its figures are compared with their ranges.",
]
CARRIES_OVER = (
    "yes",
    "The beat is written by the training loop on the host, so devices, NCCL and fabric do not change it; "
    "what changes is the price of restarting. Not measured here: reading beats from a thousand hosts over "
    "a shared file system (the judgement alone takes under a second for 1,024 ranks), and a kernel that "
    "hangs on the device.",
)
EXPECT: dict[str, Allowed] = {
    "ranks alive while nothing moved": (2, None),
    "seconds watched without any error": (WATCHED_SECONDS, None),
    "steps while watched": (0, 0),
    "seconds to detect": (0, 6),
    "seconds past the limit": (0, 1),
    "right rank named": (1, 1),
    "right phase named": (1, 1),
    "stacks of ranks kept": (2, None),
    "seconds to write the evidence": (0, 5),
    "alarms": (1, 1),
    "seconds to recover": (0, 120),
    "steps lost": (0, SAVED_EVERY),
    "last step": (40, 40),
    "processes left": (0, 0),
}
SCALE = Scale(
    share=(0.031, 0.099),
    hours_without=(0.5, 18.0),
    hours_with=(0.02, 0.15),
    reasons="Hangs are 3.1 % (Unicron) to 9.9 % (ByteRobust) of failures, as those papers are cited. "
    "Without: from gloo's default limit of 30 minutes to the 18 hours of BLOOM's chronicle. With: up to "
    "some minutes to be sure at large step times, and about a minute to start 1,024 ranks. Steps since "
    "the last checkpoint are lost on both sides and not counted.",
)


def study(profile: Profile, folder: Path) -> Study:
    """Stop one rank of a real job, once with nobody watching its steps and once under supervision."""
    shards = make_shards(RUN, placed(profile, folder))
    without, seen = _without(placed(profile, folder / "without"), shards, folder)
    with_pattern, measured, outcome = _with(placed(profile, folder / "with"), shards, folder)
    numbers = seen | measured
    (fault, *_) = outcome.faults
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=outcome.faults,
        verdict=f"Unwatched, {int(numbers['ranks alive while nothing moved'])} live ranks made no step "
        f"and no error for as long as we looked. Watched by progress, rank {fault.rank} was named after "
        f"{numbers['seconds to detect']:.1f} s, and the job stepped again "
        f"{numbers['seconds to recover']:.0f} s later.",
        notes=[
            f"The unwatched side was ended after {WATCHED_SECONDS:.0f} s; its collective would wait 1800 s.",
            "Recovery: from detection until every rank steps again; most of it is starting Python and torch.",
        ],
    )


def _job(profile: Profile, shards: Artifact, attempt: Attempt, marker: Path) -> Job:
    """The pre-training job with the drill inside; a restarted one is spared."""
    drill = Drill(kind="sleep", rank=1, step=STRIKES_AT, phase="data", once=str(marker))
    return replace(job_for(RUN, profile, shards, attempt), environment=drill.environment)


def _without(profile: Profile, shards: Artifact, folder: Path) -> tuple[Side, dict[str, float]]:
    """Watched as most jobs are: are the processes there, has any ended, is there an error?"""
    marker, started = folder / "struck-without", time.time()
    job = _job(profile, shards, FIRST, marker)
    handle = load("components.launchers", name_of(profile.launcher)).launch(job, profile.launcher)
    try:
        struck = _wait_for(marker, handle)
        time.sleep(1.0)  # what was on its way arrives
        before = heartbeat.read(job.folder / "beats")
        time.sleep(WATCHED_SECONDS)
        after, ended = heartbeat.read(job.folder / "beats"), handle.poll()
    finally:
        handle.stop()
    watched = time.time() - struck - 1.0
    alive = float(len(after)) if ended is None else 0.0
    side = Side(
        summary=f"All {len(after)} ranks were in the process table, none had ended, no log held an error.",
        spans=[
            *until(struck - started, steps := progress(job, started)),
            Span(start=struck - started, end=time.time() - started, state="harmed", text="stands still"),
        ],
        events=[
            Event(at=struck - started, text="rank 1 blocks", kind="fault"),
            Event(at=time.time() - started, text="still green, nobody knows", kind="blind"),
        ],
        progress=steps,
    )
    return side, {
        "ranks alive while nothing moved": alive,
        "seconds watched without any error": watched if ended is None else 0.0,
        "steps while watched": float(sum(beat.step for beat in after) - sum(beat.step for beat in before)),
    }


def _with(profile: Profile, shards: Artifact, folder: Path) -> tuple[Side, dict[str, float], Outcome]:
    """The same fault under supervision."""
    marker, started = folder / "struck-with", time.time()
    jobs: list[Job] = []

    def attempt(next_: Attempt) -> Job:
        jobs.append(_job(profile, shards, next_, marker))
        return jobs[-1]

    outcome = supervise(attempt, profile.launcher, LIMITS)
    ended, struck = time.time() - started, (struck_at(marker) or started) - started
    fault = outcome.faults[0]
    detected = fault.at.timestamp() - started
    recovered = detected + (fault.seconds_to_recover or 0.0)
    side = Side(
        summary=f"{fault.detail}. The stacks were kept, the tree was ended, the job went on by itself.",
        spans=[
            *until(struck, steps := progress(jobs[-1], started)),
            Span(start=struck, end=detected, state="harmed"),
            Span(start=detected, end=recovered, state="recovering", text="restarts"),
            Span(start=recovered, end=ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=struck, text="rank 1 blocks", kind="fault"),
            Event(at=detected, text=f"rank {fault.rank} named", kind="seen"),
            Event(at=recovered, text=f"steps again from {outcome.result['first_step']}", kind="mended"),
        ],
        progress=steps,
    )
    return side, _measured(outcome, jobs[-1], detected - struck), outcome


def _measured(outcome: Outcome, job: Job, seconds_to_detect: float) -> dict[str, float]:
    fault, bundle = outcome.faults[0], Path(outcome.incidents[0])
    assert fault.seconds_to_recover is not None, "the job came to its end"
    stall: dict[str, Any] = storage.read_json(str(bundle / "finding.json"))
    written = (bundle / "summary.md").stat().st_mtime - fault.at.timestamp()
    return {
        "seconds to detect": seconds_to_detect,
        "seconds past the limit": stall["seconds"] - stall["figures"]["limit_seconds"],
        "right rank named": float(fault.rank == 1 and fault.step == STRIKES_AT),
        "right phase named": float(stall["phase"] == "data"),
        "stacks of ranks kept": float(len(list((bundle / "stacks").glob("rank-*.txt")))),
        "seconds to write the evidence": written,
        "alarms": float(len(outcome.faults)),
        "seconds to recover": fault.seconds_to_recover,
        "steps lost": float(STRIKES_AT - 1 - outcome.result["first_step"]),
        "last step": float(outcome.result["step"]),
        "processes left": float(_processes_of(job)),
    }


def _wait_for(marker: Path, handle: Handle) -> float:
    """Unix time at which the drill struck."""
    deadline = time.monotonic() + START_SECONDS
    while (struck := struck_at(marker)) is None:
        if handle.poll() is not None or time.monotonic() > deadline:
            raise StanchionError(f"the job ended before the drill could strike:\n{handle.log_tail()}")
        time.sleep(0.1)
    return struck


def _processes_of(job: Job) -> int:
    """Ranks of the job that are still there."""
    return sum(psutil.pid_exists(beat.pid) for beat in heartbeat.read(job.folder / "beats"))
