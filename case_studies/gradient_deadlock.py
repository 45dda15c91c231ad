"""The gradients that were never summed: a deadlock with no stack trace, no alert and no name.

Symptom: a job that had trained for hours makes no more steps. Devices are busy, no process has ended, no log
has a new line. Half an hour later, or ten minutes, or never, a rank reports that a collective timed out: it
names the rank that waited, and neither the one that did not come nor what it did instead.

Timeline: one rank's batch is unlike the others', and its code takes another branch: a metric that it has
nothing to add to, an expert that no token was sent to, a sequence that ends sooner. It skips a collective and
goes on to the sum of gradients; the other ranks wait for it in the one it skipped, and it waits for them. The
restart reads the same data and stops at the same step.

Cause: a collective under a condition that ranks do not share. The code had run without fault for as long as
the data happened to agree.

Sources: Lightning-AI/pytorch-lightning issue 19106 (deadlock when ranks log different keys);
deepspeedai/DeepSpeed issue 8262 (ranks that end generation at different lengths wait in different
collectives) and pull 5008 (experts without a token on some ranks); NVIDIA/nccl issue 1260 (asks for the
ranks that have not joined; the answer is that there is no such code).

The drill: three real ranks train under torchrun and count a token over all of them (`_branched_train.py`).
Some steps on, one rank's batch has none, and it skips the count. No fault is injected: data decides.
"""

from __future__ import annotations

import inspect
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from case_studies._small import DATA, MODEL, make_shards, placed, progress, until
from components import storage
from components.config import Profile, Run
from components.data.reader import Reader
from components.data.stream import TokenStream
from components.errors import StanchionError
from components.jobs import Handle, Job
from components.plugins import load, name_of
from components.records import Artifact, Fault
from components.reliability import heartbeat
from components.reliability.finding import FIRST, Attempt
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import job_for

TITLE = "Ranks wait for each other in two collectives, and no log says so"
PATTERN = "Collective Fingerprint"
RANKS, STEPS, SAVED_EVERY = 3, 32, 5
PARTS_BETWEEN = (12, 26)
"""Steps between which one rank must be the first to lack the token."""
WAIT_SECONDS = 6.0
"""Time-out of a collective on the side without, so that there is an error to read."""
START_SECONDS = 240.0
RUN = Run(
    name="gradient-deadlock",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=STEPS,
        batch_size=24,
        checkpoint_every=SAVED_EVERY,
        evaluate_every=SAVED_EVERY,
        held_out_sequences=16,
        timeout_seconds=1800,  # what gloo waits by default
    ),
)
LIMITS = Limits(step_factor=3.0, floor_seconds=2.0, backoff_seconds=0.0)

CHECKLIST = [
    "No collective stands under a condition that ranks do not share; a rank with nothing adds zero.",
    "Every rank's last collectives are recorded, with a number, a shape and the line that called them.",
    "An alarm compares them and names the rank, the call and its line, before anything is killed.",
    "The name does not rest on who is behind: the rank that skipped a call is ahead of those that wait.",
    "The bundle holds the stacks and calls of all ranks, also of those that wait.",
    "A stop that comes back at the same step is in the code or its data; a restart alone does not mend it.",
]
CARRIES_OVER = (
    "yes",
    "The record is torch's Flight Recorder, made for NCCL and the same on gloo; reading it leaves the device "
    "alone. Not measured here: NCCL itself, whose kernels of the two groups may also block each other on "
    "the device, and groups that overlap (tensor, pipeline), of which a rank is in several at once.",
)
EXPECT: dict[str, Allowed] = {
    "seconds that gloo waits by default": (1800, 1800),
    "steps before the branch parted": (PARTS_BETWEEN[0] - 1, PARTS_BETWEEN[1] - 1),
    "ranks alive while nothing moved": (RANKS, RANKS),
    "seconds until the job ended with an error, with a wait of 6": (WAIT_SECONDS - 1, WAIT_SECONDS + 15),
    "errors that name the rank that did not come": (0, 0),
    "seconds to detect": (0, 6),
    "right rank named": (1, 1),
    "right operation and shape named": (1, 1),
    "right line named": (1, 1),
    "ranks that beats alone put behind the culprit": (RANKS - 1, RANKS - 1),
    "stacks of ranks kept": (RANKS, RANKS),
    "records of collectives kept": (RANKS, RANKS),
    "seconds to write the evidence": (0, 5),
    "alarms": (1, 1),
    "seconds to recover": (0, 120),
    "steps lost": (0, SAVED_EVERY),
    "last step": (STEPS, STEPS),
    "processes left": (0, 0),
}
SCALE = Scale(
    share=(0.031, 0.101),
    hours_without=(0.5, 18.0),
    hours_with=(0.02, 0.5),
    reasons="Hangs are 3.1 % of failures and NCCL time-outs 10.1 % (Unicron), as that paper is cited; not "
    "all of them are of this kind. Without: from gloo's default limit of 30 minutes to the 18 hours of "
    "BLOOM's chronicle. With: minutes to be sure at large step times, and up to half an hour to mend "
    "the line that was named; without the name that time comes on top.",
)


class Parting(NamedTuple):
    """Where data makes one rank take the other branch."""

    token: int
    step: int
    rank: int


def study(profile: Profile, folder: Path) -> Study:
    """Let data part the ranks, once with a time-out alone and once with their collectives compared."""
    three = placed(profile, folder).model_copy(update={"processes": RANKS})
    shards = make_shards(RUN, three)
    parting = parting_of(shards.url)
    without, seen = _without(placed(three, folder / "without"), shards, parting)
    with_pattern, measured, outcome = _with(placed(three, folder / "with"), shards, parting)
    numbers = {"steps before the branch parted": float(parting.step - 1), **seen, **measured}
    fault = outcome.faults[0]
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=outcome.faults,
        verdict=f"With a time-out alone {RANKS} live ranks stood still until an error that named nobody. "
        f"With their collectives compared, rank {fault.rank}, the call and its line were named after "
        f"{numbers['seconds to detect']:.1f} s, though that rank was ahead of the others.",
        notes=[
            f"Token {parting.token} of 512 was in every rank's batch until step {parting.step}, in which "
            f"rank {parting.rank} has none.",
            f"The wait on the side without was set to {WAIT_SECONDS:.0f} s to have an error to read; it is "
            "1800 s where nobody sets it.",
            "The second attempt runs with the branch mended (a rank with nothing adds zero), as who reads "
            "the named line would mend it: data decides, so a bare restart stops at the same step.",
        ],
    )


def parting_of(shards: str) -> Parting:
    """A token that every rank meets in each step, until one rank alone does not."""
    training = RUN.training
    with Reader(shards) as reader:
        length = RUN.model.context_length
        stream = TokenStream(
            reader, "train", sequence_length=length, batch_size=training.batch_size, seed=RUN.seed
        )
        known = set(range(512))
        for step in range(1, PARTS_BETWEEN[1] + 1):
            batches = [stream.batch(step - 1, rank=rank, world_size=RANKS).inputs for rank in range(RANKS)]
            met = [known & set(batch.ravel().tolist()) for batch in batches]
            lacking = [(token, rank) for rank in range(RANKS) for token in known - met[rank]]
            alone = [one for one in lacking if sum(one[0] in tokens for tokens in met) == RANKS - 1]
            if step >= PARTS_BETWEEN[0] and alone:
                token, rank = min(alone)
                return Parting(token, step, rank)
            known = set.intersection(*met)
    raise StanchionError(f"no token parts the ranks between steps {PARTS_BETWEEN}; use other data")


def _job(profile: Profile, shards: Artifact, attempt: Attempt, parting: Parting) -> Job:
    """The job that counts; the attempt after a deadlock has the line mended."""
    job = job_for(RUN, profile, shards, attempt)
    branch = {"token": parting.token, "always": attempt.number > 0}
    return replace(job, target="case_studies._branched_train", settings={**job.settings, "branch": branch})


def _without(profile: Profile, shards: Artifact, parting: Parting) -> tuple[Side, dict[str, float]]:
    """The collective's own time-out, and what its error says."""
    started = time.time()
    job = _job(profile, shards, FIRST, parting)
    training = {**job.settings["training"], "timeout_seconds": WAIT_SECONDS}
    job = replace(job, settings={**job.settings, "training": training})
    handle = load("components.launchers", name_of(profile.launcher)).launch(job, profile.launcher)
    try:
        alive, ended = _until_it_ends(job, handle, parting)
        errors = _errors(job)
    finally:
        handle.stop()
    line = progress(job, started)
    stood = line[-1][0]
    told = [text for text in errors if re.search(rf"rank\W*{parting.rank}\b", text, re.IGNORECASE)]
    side = Side(
        summary=f"All {alive} ranks were alive and none moved. The error that came at last: `{errors[-1]}`.",
        spans=[
            *until(stood, line),
            Span(start=stood, end=ended - started, state="harmed", text="waits, green"),
        ],
        events=[
            Event(at=stood, text=f"rank {parting.rank} skips a call", kind="fault"),
            Event(at=ended - started, text="a time-out that names nobody", kind="blind"),
        ],
        progress=line,
    )
    return side, {
        "seconds that gloo waits by default": _default_wait(),
        "ranks alive while nothing moved": float(alive),
        "seconds until the job ended with an error, with a wait of 6": ended - started - stood,
        "errors that name the rank that did not come": float(len(told)),
    }


def _until_it_ends(job: Job, handle: Handle, parting: Parting) -> tuple[int, float]:
    """Ranks alive in the middle of the wait, and the Unix time at which the job had ended."""
    deadline, alive, since = time.monotonic() + START_SECONDS, 0, None
    while handle.poll() is None:
        beats = heartbeat.read(job.folder / "beats")
        if since is None and len(beats) == RANKS and min(beat.step for beat in beats) == parting.step:
            since = time.monotonic()
        if since is not None and not alive and time.monotonic() > since + WAIT_SECONDS / 2:
            alive = len(beats)
        if time.monotonic() > deadline:
            raise StanchionError(f"the job did not come to its end:\n{handle.log_tail()}")
        time.sleep(0.1)
    return alive, time.time()


def _errors(job: Job) -> list[str]:
    """What the ranks' logs say went wrong, without the name of who says it."""
    logs = sorted((job.folder / "logs").glob("attempt-*/**/stderr.log"))
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    found = [line for line in lines if "Error" in line and "Traceback" not in line]
    if not found:
        raise StanchionError(f"{job.folder}/logs holds no error")
    return [re.sub(r"^\[rank\d+\]: ", "", line) for line in found]


def _default_wait() -> float:
    """Seconds, as the installed torch has them."""
    from torch.distributed.constants import default_pg_timeout

    return float(default_pg_timeout.total_seconds())


def _with(profile: Profile, shards: Artifact, parting: Parting) -> tuple[Side, dict[str, float], Outcome]:
    """The same data under supervision."""
    started = time.time()
    jobs: list[Job] = []

    def attempt(next_: Attempt) -> Job:
        jobs.append(_job(profile, shards, next_, parting))
        return jobs[-1]

    outcome = supervise(attempt, profile.launcher, LIMITS)
    ended, fault = time.time() - started, outcome.faults[0]
    line = progress(jobs[-1], started)
    detected = fault.at.timestamp() - started
    stood = max(at for at, _ in line if at < detected)
    recovered = detected + (fault.seconds_to_recover or 0.0)
    side = Side(
        summary=f"{fault.detail[0].upper()}{fault.detail[1:]}.",
        spans=[
            *until(stood, line),
            Span(start=stood, end=detected, state="harmed"),
            Span(start=detected, end=recovered, state="recovering", text="restarts, mended"),
            Span(start=recovered, end=ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=stood, text=f"rank {parting.rank} skips a call", kind="fault"),
            Event(at=detected, text=f"rank {fault.rank} and line named", kind="seen"),
            Event(at=recovered, text=f"steps again from {outcome.result['first_step']}", kind="mended"),
        ],
        progress=line,
    )
    fault = fault.model_copy(update={"seconds_to_detect": detected - stood})
    outcome = outcome.model_copy(update={"faults": [fault, *outcome.faults[1:]]})
    return side, _measured(outcome, jobs[-1], parting), outcome


def _measured(outcome: Outcome, job: Job, parting: Parting) -> dict[str, float]:
    fault, bundle = outcome.faults[0], Path(outcome.incidents[0])
    assert fault.seconds_to_recover is not None, "the job came to its end"
    assert fault.seconds_to_detect is not None, "it was named"
    beats: list[dict[str, Any]] = storage.read_json(str(bundle / "beats.json"))
    ahead = next(beat for beat in beats if beat["rank"] == parting.rank)
    behind = [beat for beat in beats if _place(beat) < _place(ahead)]
    return {
        "seconds to detect": fault.seconds_to_detect,
        "right rank named": float(fault.rank == parting.rank and _who_has_not_come(fault) == parting.rank),
        "right operation and shape named": float("all_reduce of 1 Long" in fault.detail),
        "right line named": float(f"_count, _branched_train.py:{_line_of_call()}" in fault.detail),
        "ranks that beats alone put behind the culprit": float(len(behind)),
        "stacks of ranks kept": float(len(list((bundle / "stacks").glob("rank-*.txt")))),
        "records of collectives kept": float(len(list((bundle / "flight").glob("rank-*.jsonl")))),
        "seconds to write the evidence": (bundle / "summary.md").stat().st_mtime - fault.at.timestamp(),
        "alarms": float(len(outcome.faults)),
        "seconds to recover": fault.seconds_to_recover,
        "steps lost": float(parting.step - 1 - outcome.result["first_step"]),
        "last step": float(outcome.result["step"]),
        "processes left": float(len(_alive(job))),
    }


def _place(beat: dict[str, Any]) -> tuple[int, int]:
    return beat["step"], heartbeat.PHASES.index(beat["phase"])


def _who_has_not_come(fault: Fault) -> int | None:
    found = re.search(r"rank (\d+) has not come", fault.detail)
    return int(found[1]) if found else None


def _line_of_call() -> int:
    """Where the call stands in the source that ran."""
    from case_studies._branched_train import BranchedTrainer

    lines, first = inspect.getsourcelines(BranchedTrainer._count)
    return first + next(number for number, line in enumerate(lines) if "dist.all_reduce" in line)


def _alive(job: Job) -> list[int]:
    """Ranks of the job that are still there."""
    import psutil

    return [beat.pid for beat in heartbeat.read(job.folder / "beats") if psutil.pid_exists(beat.pid)]
