"""The NaN that no loss showed, and that was in every checkpoint by the time one did.

Symptom: after hours of a normal curve the loss is NaN from one step to the next. The restart from the newest
checkpoint gives NaN again, and so do the one before it and the one before that: retention has kept no other.

Timeline: one number in the memory of one rank becomes NaN; the optimizer's next step hands it to all ranks;
it sits in the embedding of a rare token, so no batch meets it and loss and gradient norm stay what they
were; every save writes it and pushes a finite checkpoint out; then the token comes up, and all is NaN.

Cause: a checkpoint was taken for good because the loss was. What is saved is weights, and nobody looked at
them.

Sources: Llama 3, arXiv 2407.21783 table 5 (silent data corruption: 6 of 419 unexpected interruptions in 54
days); arXiv 2602.00277 (37 such incidents, from 7 hosts); deepspeedai/DeepSpeed
runtime/zero/stage_1_and_2.py, version 0.19.8 (its check for overflow looks at gradients, never at weights).

The drill: two real ranks train under DeepSpeed ZeRO-2; before step 6 one fp32 master weight of one rank
becomes NaN. One side saves with DeepSpeed and keeps three; on the other the gates are asked about each
checkpoint as it appears.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from case_studies._small import DATA, MODEL, Line, kept, losses, make_shards, placed, progress
from components import storage
from components.checkpoints import restore, state
from components.checkpoints.keeper import Keeper
from components.checkpoints.retention import Retention
from components.config import Profile, Run, run_folder
from components.data.reader import Reader
from components.data.stream import TokenStream, fixed_batch
from components.errors import JobFailed, StanchionError
from components.jobs import Job
from components.observability import events
from components.records import Artifact, Fault
from components.reliability.finding import Attempt
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import checkpoints_of, job_for

TITLE = "The loss was normal, and every checkpoint that was kept held a NaN"
PATTERN = "Validation Gate"
PATTERNS = ["Validation Gate", "Attended Training"]
STEPS, SAVED_EVERY, KEPT, STRIKES_AT = 48, 4, 3, 6
COMES_UP = (24, 40)
"""Steps between which the token of the poisoned embedding must come up for the first time."""
RUN = Run(
    name="nan-poison",
    data=DATA,
    model=MODEL.model_copy(update={"tie_embeddings": False}),
    training=Training(
        steps=STEPS, checkpoint_every=SAVED_EVERY, evaluate_every=SAVED_EVERY, held_out_sequences=16
    ),
)
LIMITS = Limits(max_restarts=0, poll_seconds=0.05)
KEEP_ALL = Retention(keep_last=STEPS, keep_quarantined=STEPS)

CHECKLIST = [
    "Every weight of a checkpoint is looked at before the checkpoint counts; a loss is no substitute.",
    "The gates are asked while the job runs, not at the next restart.",
    "Retention counts validated checkpoints only, and keeps the last of them whatever its age.",
    "What is refused is set aside with tensor and count, and no restart loads it.",
    "A job that has written a poisoned checkpoint is ended at once: its memory holds the same.",
    "A NaN that comes back at the same step is in the data or the code; one that does not was in a device.",
]
CARRIES_OVER = (
    "yes",
    "Weights on disk are the same on GPUs, and a device is where such a number comes from. The gate reads "
    "the weights once, at about the speed of memory, on any host. Not measured here: damage that stays "
    "finite; it needs norms, replays or a comparison of replicas.",
)
EXPECT: dict[str, Allowed] = {
    "steps with a normal loss after the strike": (COMES_UP[0] - STRIKES_AT, COMES_UP[1] - STRIKES_AT),
    "losses that differ from the healthy side's": (0, 0),
    "checkpoints kept, without": (KEPT, KEPT),
    "of them with a NaN": (KEPT, KEPT),
    "steps lost, without": COMES_UP,
    "checkpoints set aside by the gate": (1, None),
    "validated checkpoints with a NaN": (0, 0),
    "step fallen back to": (SAVED_EVERY, SAVED_EVERY),
    "steps lost, with": (STRIKES_AT - SAVED_EVERY, COMES_UP[1]),
    "last step": (STEPS, STEPS),
    "last loss, with": (0, math.log(512)),
}
SCALE = Scale(
    share=(0.014, 0.055),
    hours_without=(3.0, 24.0),
    hours_with=(0.1, 3.5),
    reasons="Silent corruption in devices was 6 of 419 interruptions of Llama 3 (1.4 %) and 5.5 % of 678 at "
    "32K GPUs (arXiv 2602.00277). Without: three checkpoints an hour apart are gone, or a day back to an "
    "archived one. With: the gate's minutes, or a checkpoint interval of three hours and half an hour to "
    "restart. "
    "Not every one of them is a NaN; those that are not need other gates.",
)


def study(profile: Profile, folder: Path) -> Study:
    """Poison one weight of one rank; keep checkpoints the usual way, and behind a gate."""
    profile = placed(profile, folder)
    shards = make_shards(RUN, profile)
    token, comes_up = _rare_token(shards.url)
    poison = {"token": token, "step": STRIKES_AT}
    without, seen, poisoned = _without(profile, shards, poison, folder / "stock")
    with_pattern, measured, healthy, fault = _with(profile, shards, poison)
    shared = [step for step in poisoned if step < comes_up]
    differ = sum(poisoned[step] != healthy[step] for step in shared)
    numbers = {
        "steps with a normal loss after the strike": float(len([s for s in shared if s >= STRIKES_AT])),
        "losses that differ from the healthy side's": float(differ),
        **seen,
        **measured,
    }
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=[fault],
        verdict=f"For {int(numbers['steps with a normal loss after the strike'])} steps the loss was the "
        f"healthy one to the last bit, and then all {KEPT} checkpoints kept held the NaN: "
        f"{int(numbers['steps lost, without'])} steps were lost. The gate set the first one aside, and "
        f"{int(numbers['steps lost, with'])} were.",
        notes=[
            f"Token {token} of 512 comes up first in step {comes_up}; it is not in the held-out batch.",
            "The side without ends itself at its first NaN loss, as careful scripts do; one that goes on "
            "keeps the NaN in every checkpoint.",
            "Of the steps lost with the gate some were done while it was being asked: steps here take "
            "milliseconds, and a checkpoint comes every four.",
        ],
    )


def _rare_token(shards: str) -> tuple[int, int]:
    """A token that training meets late and evaluation not at all; the step that meets it."""
    length, training = RUN.model.context_length, RUN.training
    held_out = set(np.unique(fixed_batch(shards, training.held_out_sequences, length)))
    met: dict[int, int] = {}
    with Reader(shards) as reader:
        stream = TokenStream(
            reader, "train", sequence_length=length, batch_size=training.batch_size, seed=RUN.seed
        )
        for step in range(1, STEPS + 1):
            for token in np.unique(stream.batch(step - 1).inputs):
                met.setdefault(int(token), step)
    low, high = COMES_UP
    late = [(step, token) for token, step in met.items() if low <= step <= high and token not in held_out]
    if not late:
        raise StanchionError(f"every token came up before step {low} or after step {high}; use other data")
    step, token = max(late)
    return token, step


def _without(
    profile: Profile, shards: Artifact, poison: dict[str, int], folder: Path
) -> tuple[Side, dict[str, float], dict[int, float]]:
    """DeepSpeed's saves, the newest three kept, until the loss is NaN."""
    job = job_for(RUN, profile, shards)
    stock = {"folder": str(folder / "checkpoints"), "keep": KEPT}
    job = replace(
        job,
        target="case_studies._poisoned_train",
        settings={**job.settings, "stock": stock, "poison": poison},
        folder=folder / "job",
    )
    started = time.time()
    try:
        supervise(lambda _: job, profile.launcher, LIMITS)
    except JobFailed:
        ended = time.time() - started
    else:
        raise StanchionError(f"{STEPS} steps ended without a NaN loss: the strike missed")
    line, struck = progress(job, started), _struck(job, started)
    there = kept(folder / "checkpoints")
    bad = [checkpoint for checkpoint in there if _is_poisoned(str(checkpoint))]
    steps = int(line[-1][1])
    good = max((int(one.name.partition("-")[2]) for one in there if one not in bad), default=0)
    side = Side(
        summary=f"The curve was normal for {steps - STRIKES_AT} steps, then the loss was NaN. {len(bad)} of "
        f"the {len(there)} checkpoints that retention had kept held the NaN; training had to start over.",
        spans=[
            Span(start=0, end=line[0][0], state="starting", text="starts"),
            Span(start=line[0][0], end=struck, state="healthy"),
            Span(start=struck, end=ended, state="harmed", text="trains and saves, poisoned"),
        ],
        events=[
            Event(at=struck, text="one weight is NaN", kind="fault"),
            Event(at=line[-1][0], text="first NaN loss, nothing left", kind="blind"),
        ],
        progress=line,
    )
    numbers = {
        "checkpoints kept, without": float(len(there)),
        "of them with a NaN": float(len(bad)),
        "steps lost, without": float(steps - good),
    }
    return side, numbers, losses(job)


def _with(
    profile: Profile, shards: Artifact, poison: dict[str, int]
) -> tuple[Side, dict[str, float], dict[int, float], Fault]:
    """The same strike, each checkpoint judged as it appears."""
    checkpoints = checkpoints_of(RUN, profile)
    jobs: list[Job] = []

    def attempt(next_: Attempt) -> Job:
        job = job_for(RUN, profile, shards, next_)
        settings = {**job.settings, "poison": poison}
        jobs.append(replace(job, target="case_studies._poisoned_train", settings=settings))
        return jobs[-1]

    started, scratch = time.time(), run_folder(RUN, profile).scratch("keeper")
    with Keeper(checkpoints, RUN.gates.during, KEEP_ALL, scratch, look_seconds=0.05) as keeper:
        outcome = supervise(attempt, profile.launcher, LIMITS.model_copy(update={"max_restarts": 1}), keeper)
    ended, fell_back = time.time() - started, int(outcome.result["first_step"])
    if [found.kind for found in outcome.faults] != ["corruption"]:
        raise StanchionError(f"the gates were to end the job, and this did: {outcome.faults}")
    fault = outcome.faults[0]
    seen = fault.at.timestamp() - started
    line = progress(jobs[0], started)
    before = [point for point in line if point[0] <= seen]
    after = [point for point in line if point[0] > seen]
    told = fault.detail.replace(f"{checkpoints}/", "")
    seconds = seen - _struck(jobs[0], started)
    fault = fault.model_copy(update={"detail": told, "step": STRIKES_AT, "seconds_to_detect": seconds})
    numbers = {
        **_states(checkpoints),
        "step fallen back to": float(fell_back),
        "steps lost, with": float(int(before[-1][1]) - fell_back),
        "last step": float(outcome.result["step"]),
        "last loss, with": float(outcome.result["loss_last"]),
    }
    return _gated(before, after, fault, ended, _refusal(checkpoints)), numbers, losses(jobs[0]), fault


def _gated(before: Line, after: Line, fault: Fault, ended: float, refusal: str) -> Side:
    """The side with the gate, as it is drawn."""
    assert fault.seconds_to_detect is not None, "it was refused"
    recovered = after[0][0]
    seen = recovered - (fault.seconds_to_recover or 0.0)
    struck, fell_back = seen - fault.seconds_to_detect, int(after[0][1]) - 1
    return Side(
        summary=f"The gate refused the first checkpoint that held it ({refusal}) while the loss was still "
        f"normal. The job was ended and went on from step {fell_back} by itself.",
        spans=[
            Span(start=0, end=before[0][0], state="starting", text="starts"),
            Span(start=before[0][0], end=struck, state="healthy"),
            Span(start=struck, end=seen, state="harmed"),
            Span(start=seen, end=recovered, state="recovering", text="goes back"),
            Span(start=recovered, end=ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=struck, text="one weight is NaN", kind="fault"),
            Event(at=seen, text="checkpoint refused", kind="seen"),
            Event(at=recovered, text=f"steps again from {fell_back}", kind="mended"),
        ],
        progress=before + after,
    )


def _refusal(checkpoints: str) -> str:
    """Why the gates have set the first one aside."""
    known = (state.read(url) for url in restore.newest_first(checkpoints))
    refused = [verdict for found in known if found for verdict in found.verdicts if not verdict.passed]
    return refused[-1].reason


def _states(checkpoints: str) -> dict[str, float]:
    """How the gate has sorted them, looked at once more, and not by the gate."""
    known = {url: state.read(url) for url in restore.newest_first(checkpoints)}
    validated = [url for url, found in known.items() if found and found.state == "validated"]
    aside = [url for url, found in known.items() if found and found.state == "quarantined"]
    return {
        "checkpoints set aside by the gate": float(len(aside)),
        "validated checkpoints with a NaN": float(sum(_is_poisoned(url) for url in validated)),
    }


def _is_poisoned(checkpoint: str) -> bool:
    """Whether any weight of any model file in it is not finite, whoever wrote it."""
    import torch
    from safetensors.torch import load_file

    folder = storage.local_path(checkpoint)
    states = [load_file(path) for path in folder.glob("*.safetensors")]
    states += [torch.load(path, weights_only=False)["module"] for path in folder.glob("*model_states.pt")]
    if not states:
        raise StanchionError(f"no weights under {folder}")
    return any(not bool(tensor.isfinite().all()) for held in states for tensor in held.values())


def _struck(job: Job, started: float) -> float:
    """Seconds since `started` at which the number became NaN, as its rank wrote it."""
    at = [event["at"] for event in events.read(job.folder / "events", "struck")]
    if not at:
        raise StanchionError("no rank holds the number that was to become NaN")
    return float(at[-1]) - started
