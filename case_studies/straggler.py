"""The rank that made all others slow, while every dashboard showed the same step time on each of them.

Symptom: training is slower than yesterday, by some percent or by a factor. No rank stands out: all report the
same seconds a step, devices look busy, the network test is clean. One number, tokens a second, is low.

Timeline: one machine is throttled, shared or has a slow disk; its rank comes late to every collective; the
others wait there, which looks like work; the mean of all ranks hides it. Somebody takes nodes out a few at a
time until the number is right again.

Cause: steps are synchronous, so the time of a whole step is that of the slowest rank, on all of them. Only
the phases in which no rank waits for another tell who is slow.

Sources: bigscience train/tr11-176B-ml/chronicles.md, 2022-04-28 (149 to 140 TFLOPs, found by taking out three
nodes at a time); MegaScale (0.5 % of machines about 10 % slower; 0.7 % more MFU without them);
NVIDIA/nvidia-resiliency-ext docs/source/straggler_det (relative scores, threshold 0.7).

The drill: two real ranks train under torchrun; from step 17 on one of them computes beside its work, in the
forward phase, for as long as makes its step three times that of a healthy run measured just before.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from case_studies._small import DATA, MODEL, make_shards, placed, progress, until
from components.config import Profile, Run
from components.errors import StanchionError
from components.jobs import Job
from components.observability import events
from components.records import Artifact, Fault
from components.reliability.config import Reliability
from components.reliability.faults import Drill, struck_at
from components.reliability.finding import Attempt
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import job_for

TITLE = "Every rank is equally slow, and one of them is why"
PATTERN = "Step-Time Breakdown"
RANK, STRIKES_AT, STEPS, SAVED_EVERY = 1, 17, 48, 8
TIMES_AS_SLOW, HARDLY_SLOW = 3.0, 1.1
RUN = Run(
    name="straggler",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=STEPS, checkpoint_every=SAVED_EVERY, evaluate_every=SAVED_EVERY, held_out_sequences=16
    ),
)

CHECKLIST = [
    "Every rank times every phase of every step; whole steps are never compared between ranks.",
    "Ranks are compared in phases that hold no collective: who is long there is waited for elsewhere.",
    "An alarm takes a ratio, a difference in seconds and a share of the step, by medians of several steps.",
    "It names rank and phase, so that one machine is taken out instead of three at a time.",
    "It is quiet at 1.1 times: a machine that is a little slower is for a weekly report.",
    "What is done about it (told, or ended and started elsewhere) is a setting.",
]
CARRIES_OVER = (
    "partly",
    "The comparison is arithmetic on events and the same for 1,024 ranks. On a device, phases must be timed "
    "with its own events or after a wait for it, and under ZeRO 3 or tensor parallelism forward holds "
    "collectives too: then only data, or a timer of kernels, is left to compare. Not measured here: a rank "
    "that is slow only in backward.",
)
EXPECT: dict[str, Allowed] = {
    "alarms in a healthy run": (0, 0),
    "alarms at 1.1 times": (0, 0),
    "times as slow, without": (2.0, 4.5),
    "tokens a second, share of healthy": (0.2, 0.5),
    "step times of ranks apart, share": (0, 0.05),
    "steps until named": (1, 20),
    "seconds until named": (0, 20),
    "right rank named": (1, 1),
    "right phase named": (1, 1),
    "seconds to recover": (0, 120),
    "times as slow, after the restart": (0, 1.7),
    "steps lost": (0, SAVED_EVERY + 20),
    "last step": (STEPS, STEPS),
}
SCALE = Scale(
    share=(0.01, 0.11),
    hours_without=(0.5, 16.0),
    hours_with=(0.1, 0.5),
    reasons="Implicit failures, slow machines among them, are 11 % of ByteRobust's incidents, as that paper "
    "is cited; how many of those are slow is not published, hence from 1 %. Hours are of the whole job: 6 % "
    "(BLOOM) of a shift until somebody looks, up to two thirds of a day at three times the step. With: "
    "twenty slow steps, a restart, and the steps since the last checkpoint.",
)


class Tried(NamedTuple):
    """A job that came to its end."""

    job: Job
    outcome: Outcome
    started: float
    """Unix time."""
    ended: float
    struck: float
    """Seconds after the start; 0 where nothing was to strike."""


def study(profile: Profile, folder: Path) -> Study:
    """Measure a healthy run; slow one rank, unnoticed and noticed; and slow it too little to be news."""
    profile = placed(profile, folder)
    shards = make_shards(RUN, profile)
    told, ending = _watched(ends=False), _watched(ends=True)
    healthy = _tried(profile, shards, folder / "healthy", told)
    usual = pace(healthy.job, healthy.started)
    slowed, hardly = (factor * usual - usual for factor in (TIMES_AS_SLOW, HARDLY_SLOW))
    little = _tried(profile, shards, folder / "little", told, slower=hardly)
    blind = _tried(profile, shards, folder / "without", Reliability(), slower=slowed)
    seen = _tried(profile, shards, folder / "with", ending, slower=slowed)
    (fault, *_) = seen.outcome.faults
    fault = fault.model_copy(update={"seconds_to_detect": fault.at.timestamp() - seen.started - seen.struck})
    numbers = {
        "alarms in a healthy run": float(len(healthy.outcome.faults)),
        "alarms at 1.1 times": float(len(little.outcome.faults)),
        **_without(blind, healthy, usual),
        **_with(seen, fault, usual),
    }
    return Study(
        without=_unseen(blind, numbers),
        with_pattern=_named(seen, fault),
        numbers=numbers,
        faults=[fault],
        verdict=f"Both ranks reported steps {numbers['times as slow, without']:.1f} times as long, and their "
        f"step times were {numbers['step times of ranks apart, share']:.1%} apart. Phase by phase, rank "
        f"{fault.rank} was named after {numbers['steps until named']:.0f} steps.",
        notes=[
            f"A healthy step took {1000 * usual:.0f} ms; the drill adds {1000 * slowed:.0f} ms to one rank.",
            "The next attempt is a new process without the drill, as on another machine: settings say that a "
            "straggler ends the attempt.",
        ],
    )


def pace(job: Job, since: float, *, rank: int = 0, first: int = 4) -> float:
    """Median seconds from one step to the next that the rank wrote after that Unix time, from a step on."""
    found = events.read(job.folder / "events", "step", rank=rank)
    at = [float(event["at"]) for event in found if event["at"] >= since and event["step"] >= first]
    if len(at) < 3:
        raise StanchionError(f"{job.folder}/events holds {len(at)} steps from step {first} on, 3 are needed")
    return statistics.median(b - a for a, b in pairwise(at))


def _watched(*, ends: bool) -> Reliability:
    return Reliability.model_validate(
        {"detectors": {"stragglers": {"ends": ends}}, "limits": {"backoff_seconds": 0.0}}
    )


def _tried(
    profile: Profile, shards: Artifact, folder: Path, watched: Reliability, *, slower: float = 0.0
) -> Tried:
    """One job under supervision, with a rank that is so many seconds a step slower."""
    profile, marker, jobs = placed(profile, folder), folder / "struck", list[Job]()
    folder.mkdir(parents=True)
    drill = Drill(
        kind="slow_rank",
        rank=RANK,
        step=STRIKES_AT,
        phase="forward",
        steps=STEPS,
        settings={"seconds": max(slower, 1e-9)},
        once=str(marker),
    )

    def attempt(next_: Attempt) -> Job:
        job = job_for(RUN, profile, shards, next_)
        more = drill.environment if slower else {}
        jobs.append(replace(job, environment={**job.environment, **more}))
        return jobs[-1]

    started = time.time()
    outcome = supervise(attempt, profile.launcher, watched.limits, detectors=watched.detectors_of)
    struck = struck_at(marker) or started
    return Tried(jobs[-1], outcome, started, time.time() - started, struck - started)


def _without(blind: Tried, healthy: Tried, usual: float) -> dict[str, float]:
    """What a dashboard shows of whole steps."""
    since = blind.started + blind.struck
    each = [pace(blind.job, since, rank=rank) for rank in range(2)]
    return {
        "times as slow, without": each[0] / usual,
        "tokens a second, share of healthy": _tokens(blind, since) / _tokens(healthy, healthy.started),
        "step times of ranks apart, share": abs(each[0] - each[1]) / each[0],
    }


def _tokens(tried: Tried, since: float) -> float:
    """Median tokens a second, as rank 0 wrote them."""
    found = events.read(tried.job.folder / "events", "step", rank=0)
    at = [event for event in found if event["at"] >= since]
    return statistics.median(
        float(after["tokens"]) / (float(after["at"]) - float(before["at"])) for before, after in pairwise(at)
    )


def _with(seen: Tried, fault: Fault, usual: float) -> dict[str, float]:
    assert fault.seconds_to_recover is not None, "the job came to its end"
    assert fault.seconds_to_detect is not None, "it was struck"
    assert fault.step is not None, "a straggler is told with its step"
    first = int(seen.outcome.result["first_step"])
    recovered = fault.at.timestamp() + fault.seconds_to_recover
    return {
        "steps until named": float(fault.step - STRIKES_AT + 1),
        "seconds until named": fault.seconds_to_detect,
        "right rank named": float(fault.rank == RANK),
        "right phase named": float("slow in forward" in fault.detail),
        "seconds to recover": fault.seconds_to_recover,
        "times as slow, after the restart": pace(seen.job, recovered, first=first + 2) / usual,
        "steps lost": float(fault.step - first),
        "last step": float(seen.outcome.result["step"]),
    }


def _unseen(blind: Tried, numbers: dict[str, float]) -> Side:
    line = progress(blind.job, blind.started)
    return Side(
        summary=f"Tokens a second fell to {numbers['tokens a second, share of healthy']:.0%}; the steps of "
        "both ranks were equally long, and no alarm was raised.",
        spans=[
            *until(blind.struck, line),
            Span(start=blind.struck, end=blind.ended, state="harmed", text="slow on every rank"),
        ],
        events=[
            Event(at=blind.struck, text=f"rank {RANK} becomes slow", kind="fault"),
            Event(at=blind.ended, text="nobody knows which", kind="blind"),
        ],
        progress=line,
    )


def _named(seen: Tried, fault: Fault) -> Side:
    line = progress(seen.job, seen.started)
    named = fault.at.timestamp() - seen.started
    recovered = named + (fault.seconds_to_recover or 0.0)
    return Side(
        summary=f"{fault.detail[0].upper()}{fault.detail[1:]}. The attempt was ended and went on without it.",
        spans=[
            *until(seen.struck, line),
            Span(start=seen.struck, end=named, state="harmed"),
            Span(start=named, end=recovered, state="recovering", text="restarts"),
            Span(start=recovered, end=seen.ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=seen.struck, text=f"rank {RANK} becomes slow", kind="fault"),
            Event(at=named, text=f"rank {fault.rank} named", kind="seen"),
            Event(at=recovered, text=f"steps again from {seen.outcome.result['first_step']}", kind="mended"),
        ],
        progress=line,
    )
