"""Six bad batches threw the loss up, and it took many times as long to come down again.

Symptom: the loss, smooth for weeks, jumps within a few steps. Sometimes it comes down again, sometimes
not; the run is worse for it either way, and a restart from the newest checkpoint restarts the spike.

Timeline: a shard holds noise; its batches come up; their gradients, clipped to an ordinary norm, point
nowhere; the weights are thrown off; a checkpoint is saved on top of it; good batches follow and have to teach
again what was known.

Cause: a spike needs a state of the weights and some data. A restart from behind the spike keeps the one, a
restart from before it meets the other again.

Sources: PaLM (about 20 spikes in one run; each time back about 100 steps, and 200 to 500 batches left out);
BLOOM's chronicle, bigscience train/tr11-176B-ml/chronicles.md (a step took 105 s on 384 GPUs).

The drill: two real ranks under ZeRO-2; rank 1's share of six batches in a row is noise, whenever they are
read. One side goes on, as most do; on the other the detector ends the attempt, and the next one goes on from
before the spike and leaves these batches out.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from case_studies._small import DATA, MODEL, losses, make_shards, placed, progress
from components.checkpoints.retention import Retention
from components.config import Profile, Run
from components.errors import StanchionError
from components.jobs import Job
from components.observability import events
from components.records import Artifact, Fault
from components.reliability.config import Reliability
from components.reliability.faults import Drill
from components.reliability.finding import Attempt
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.curve import by_step
from components.training.job import job_for

TITLE = "Six bad batches threw the loss up; a restart from before them, without them, did not see it"
PATTERN = "Rewind-and-Skip"
PATTERNS = ["Rewind-and-Skip", "Supervised Restart", "Validation Gate"]
STEPS, SAVED_EVERY, FIRST_BAD, NUM_BAD = 80, 10, 45, 6
WINDOW, SUSTAINED, BEFORE, AFTER = 16, 3, 2, 8
RUN = Run(
    name="loss-spike",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=STEPS,
        checkpoint_every=SAVED_EVERY,
        evaluate_every=SAVED_EVERY,
        held_out_sequences=16,
    ),
)
LIMITS = Limits(max_restarts=1, backoff_seconds=0.0)
REWINDS = Reliability.model_validate(
    {
        "detectors": {
            "loss_spikes": {
                "window": WINDOW,
                "sustained": SUSTAINED,
                "before": BEFORE,
                "after": AFTER,
                "action": "rewind",
            }
        }
    }
)

CHECKLIST = [
    "A spike is several losses in a row far above a running median; one hard batch is none.",
    "Going back means to before the first high step; checkpoints since then are set aside for good.",
    "The batches around the spike are left out; a restart that reads them again proves nothing.",
    "What is left out is part of a checkpoint's position in the data, at any number of ranks.",
    "No other sample is lost or repeated, and the account of it is kept.",
    "The batches are looked at afterwards: noise is for the data gates, not for the trainer.",
]
CARRIES_OVER = (
    "partly",
    "The detector reads the loss, and the order of batches is arithmetic; neither knows of devices. Not "
    "shown here: spikes of large models with sound data, for which PaLM did the same by hand.",
)
EXPECT: dict[str, Allowed] = {
    "loss above the usual, without": (0.5, 4),
    "held-out loss too high behind it, without": (0.02, 3),
    "checkpoints saved on top of it, without": (1, 1),
    "alarms": (1, 1),
    "right step named": (1, 1),
    "steps until it was sure": (SUSTAINED - 1, SUSTAINED - 1),
    "step fallen back to": (FIRST_BAD - 1 - SAVED_EVERY, FIRST_BAD - 1 - BEFORE),
    "steps done again": (1, STEPS - SAVED_EVERY),
    "batches left out": (NUM_BAD, BEFORE + SUSTAINED + AFTER),
    "bad batches trained on again": (0, 0),
    "other batches lost or repeated": (0, 0),
    "last step": (STEPS, STEPS),
}
SCALE = Scale(
    share=(0.01, 0.1),
    hours_without=(3.0, 24.0),
    hours_with=(0.5, 3.5),
    reasons="PaLM met about 20 spikes in one run; no share of failures is published, one to ten in a hundred "
    "is taken. Without: 100 steps of 105 s (BLOOM) until someone has gone back by hand, up to a night until "
    "someone looks. With: the same steps again, or a restart of half an hour where a checkpoint is near.",
)


def study(profile: Profile, folder: Path) -> Study:
    """Six bad batches: once nobody does anything, once the job goes back and around them."""
    profile = placed(profile, folder).model_copy(
        update={"processes": 2, "retention": Retention(keep_last=STEPS), "reliability": REWINDS}
    )
    shards = make_shards(RUN, profile)
    without, job, seen = _without(profile, shards, folder)
    with_pattern, jobs, outcome, measured = _with(profile, shards)
    fault = outcome.faults[0]
    numbers = seen | measured | {"held-out loss too high behind it, without": _worse(job, jobs[-1])}
    again, out = int(numbers["steps done again"]), int(numbers["batches left out"])
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=outcome.faults,
        verdict=f"Unwatched, the loss rose by {numbers['loss above the usual, without']:.1f} and the model "
        f"was saved on top of it. Rewound, step {fault.step} was named as the first; {again} steps were done "
        f"again, {out} batches left out, no other one lost or repeated, and there was no second spike.",
        notes=[
            "The noise belongs to its batches: whoever reads them again meets it again.",
            f"Compared on the same held-out batch at step {_behind()}, the first one behind the spike.",
        ],
    )


def _behind() -> int:
    """The first evaluation after the last bad batch."""
    return -(-(FIRST_BAD + NUM_BAD - 1) // SAVED_EVERY) * SAVED_EVERY


def _job(job: Job) -> Job:
    """With bad batches in its data."""
    noise = Drill(kind="poisoned_batch", rank=1, step=FIRST_BAD, steps=NUM_BAD)
    return replace(job, environment=noise.environment)


def _without(profile: Profile, shards: Artifact, folder: Path) -> tuple[Side, Job, dict[str, float]]:
    """Nobody looks at the curve."""
    job = job_for(RUN, profile, shards)
    settings = {**job.settings, "checkpoints": str(folder / "unwatched" / "checkpoints")}
    job = _job(replace(job, settings=settings, folder=folder / "unwatched" / "job"))
    started = time.time()
    outcome = supervise(lambda _: job, profile.launcher, LIMITS)
    ended, line, curve = time.time() - started, progress(job, started), losses(job)
    if outcome.faults:
        raise StanchionError(f"nobody was to notice, and there was {outcome.faults}")
    bad = range(FIRST_BAD, FIRST_BAD + NUM_BAD)
    usual = fmean(curve[step] for step in range(FIRST_BAD - WINDOW, FIRST_BAD))
    top, struck, over = max(curve[step] for step in bad), _at(line, bad[0]), _at(line, bad[-1])
    saved = [int(event["step"]) for event in events.read(job.folder / "events", "save", rank=0)]
    side = Side(
        summary=f"The loss rose from {usual:.2f} to {top:.2f} within a step, and every process was healthy.",
        spans=[
            Span(start=0, end=line[0][0], state="starting", text="starts"),
            Span(start=line[0][0], end=struck, state="healthy"),
            Span(start=struck, end=over, state="harmed", text="noise"),
            Span(start=over, end=ended, state="recovering", text="learns again what it knew"),
        ],
        events=[
            Event(at=struck, text="first bad batch", kind="fault"),
            Event(at=ended, text="done, nobody has looked", kind="blind"),
        ],
        progress=line,
    )
    numbers = {
        "loss above the usual, without": top - usual,
        "checkpoints saved on top of it, without": float(sum(step in bad for step in saved)),
    }
    return side, job, numbers


def _with(profile: Profile, shards: Artifact) -> tuple[Side, list[Job], Outcome, dict[str, float]]:
    """The detector looks, and the next attempt goes around."""
    jobs, started = list[Job](), time.time()

    def attempt(next_: Attempt) -> Job:
        jobs.append(_job(job_for(RUN, profile, shards, next_)))
        return jobs[-1]

    outcome = supervise(attempt, profile.launcher, LIMITS, detectors=profile.reliability.detectors_of)
    ended, line = time.time() - started, progress(jobs[0], started)
    if [found.kind for found in outcome.faults] != ["loss_spike"]:
        raise StanchionError(f"a spike was to end the job once, and this did: {outcome.faults}")
    fault = outcome.faults[0]
    struck, seen = _at(line, FIRST_BAD), fault.at.timestamp() - started
    fault = outcome.faults[0] = fault.model_copy(update={"seconds_to_detect": seen - struck})
    numbers = _accounted(outcome, jobs)
    return _drawn(fault, line, struck, ended, int(outcome.result["first_step"])), jobs, outcome, numbers


def _accounted(outcome: Outcome, jobs: list[Job]) -> dict[str, float]:
    """What the batches of the steps that count were, by the events of the ranks."""
    first_step, fault = int(outcome.result["first_step"]), outcome.faults[0]
    steps = events.read(jobs[0].folder / "events", "step", rank=0)
    (resumed,) = (event["at"] for event in events.read(jobs[0].folder / "events", "resume", rank=0))
    done = [event for event in steps if event["at"] < resumed]
    kept = {int(event["step"]): int(event["batch"]) for event in done if event["step"] <= first_step}
    kept |= {int(event["step"]): int(event["batch"]) for event in steps if event["at"] > resumed}
    ((first, last),) = jobs[-1].settings["left_out"]
    around = [number for number in range(STEPS + last - first + 1) if not first <= number <= last]
    bad = range(FIRST_BAD - 1, FIRST_BAD - 1 + NUM_BAD)
    return {
        "alarms": float(len(outcome.faults)),
        "right step named": float(fault.step == FIRST_BAD),
        "steps until it was sure": float(last - AFTER - bad[0]),
        "step fallen back to": float(first_step),
        "steps done again": float(max(int(event["step"]) for event in done) - first_step),
        "batches left out": float(outcome.result["left_out_batches"]),
        "bad batches trained on again": float(sum(number in bad for number in kept.values())),
        "other batches lost or repeated": float(
            sum(mine != wanted for mine, wanted in zip(kept.values(), around, strict=True))
        ),
        "last step": float(outcome.result["step"]),
    }


def _drawn(fault: Fault, line: list[tuple[float, float]], struck: float, ended: float, back: int) -> Side:
    """The side with the pattern."""
    assert fault.seconds_to_detect is not None, "it was found"
    seen = struck + fault.seconds_to_detect
    recovered = seen + (fault.seconds_to_recover or 0.0)
    return Side(
        summary=f"{fault.detail}. The job went back to step {back} and around these batches by itself.",
        spans=[
            Span(start=0, end=line[0][0], state="starting", text="starts"),
            Span(start=line[0][0], end=struck, state="healthy"),
            Span(start=struck, end=seen, state="harmed"),
            Span(start=seen, end=recovered, state="recovering", text="goes back"),
            Span(start=recovered, end=ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=struck, text="first bad batch", kind="fault"),
            Event(at=seen, text=f"spike since step {fault.step}", kind="seen"),
            Event(at=recovered, text=f"steps again from {back}", kind="mended"),
        ],
        progress=line,
    )


def _worse(harmed: Job, rewound: Job) -> float:
    """By how much the held-out loss is higher where nobody went back, right behind the spike."""
    curves = [dict(by_step(job.folder / "events", "evaluate", "held_out_loss")) for job in (harmed, rewound)]
    return curves[0][_behind()] - curves[1][_behind()]


def _at(line: list[tuple[float, float]], step: int) -> float:
    """Seconds at which a step was done for the first time."""
    return next(at for at, done in line if done == step)
