"""Three ranks trained two models, and every checkpoint was of the wrong one.

Symptom: none. All ranks are at work, the loss is what it always was, no log holds an error. Much later the
saved model is worse than its curve, or falls apart when somebody merges its parts.

Timeline: one bit of one weight in rank 0's memory flips; rank 0 computes its gradients with it, and all ranks
take the mean of all gradients, so no step brings the copies together again; rank 0 is the one whose copy is
saved; every checkpoint from there on holds the wrong weight, and a restart hands it to all.

Cause: data parallelism takes it for granted that copies which began equal and are given equal gradients stay
equal. Nothing in the step looks.

Sources: BLOOM's chronicle, bigscience train/tr11-176B-ml/chronicles.md, 2022-03-24 (a layer norm whose copies
had drifted apart, in all 104B checkpoints before it; found after days); NVIDIA/Megatron-LM
`check_weight_hash_across_dp_replicas_interval` (compares and asserts; neither names the rank nor goes back);
Llama 3, arXiv 2407.21783 table 5 (silent data corruption: 6 of 419 interruptions); arXiv 2602.00277 (5.5 % of
678).

The drill: three real ranks train without ZeRO, each with a whole copy; after step 14 one exponent bit of an
fp32 master weight of rank 0 flips. One side trains the usual way and saves with DeepSpeed; on the other,
digests of all copies are compared every 10 steps and before each save.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from case_studies._small import DATA, MODEL, kept, losses, make_shards, placed, progress
from components.checkpoints import restore, state
from components.checkpoints.retention import Retention
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
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import checkpoints_of, job_for

TITLE = "Every rank trained, the loss was normal, and one copy of the model was another model"
PATTERN = "Replica Digest"
PATTERNS = ["Replica Digest", "Supervised Restart", "Verified Rollback"]
RANKS, STEPS, SAVED_EVERY, COMPARED_EVERY, STRIKES_AT, KEPT = 3, 48, 12, 10, 14, 3
BIT = 25
"""Of an fp32 number: one of the exponent, which makes a weight 16 times as large, or as small."""
WRONG_BY = 0.05
"""More than any weight of the two healthy halves of the story differs by."""
RUN = Run(
    name="replica-desync",
    data=DATA,
    model=MODEL,
    parallelism={"zero": {"stage": 0}},
    training=Training(
        steps=STEPS,
        batch_size=24,
        checkpoint_every=SAVED_EVERY,
        evaluate_every=SAVED_EVERY,
        compare_replicas_every=COMPARED_EVERY,
        held_out_sequences=16,
    ),
)
LIMITS = Limits(max_restarts=1, backoff_seconds=0.0)

CHECKLIST = [
    "What ranks hold a copy of is compared by digest every few steps, and before every save.",
    "The odd copy is named by majority, or by the masters it was cast from; else the finding says: unclear.",
    "A checkpoint that exists was compared before it was written; a restart goes back to the newest.",
    "Copies include what the optimizer holds, where it is replicated.",
    "A rank that is named twice is taken out with its device.",
    "The loss is no evidence that replicas agree: it is the mean over them.",
]
CARRIES_OVER = (
    "yes",
    "The digest is a sum on the device, and ranks exchange 8 bytes each. Under ZeRO 1 and 2 only weights "
    "are copies, and they are gathered anew each step; under ZeRO 3 next to nothing is. Not measured: copies "
    "of tensor parallelism, as in BLOOM's case, and what a device miscomputes without a flip in memory.",
)
EXPECT: dict[str, Allowed] = {
    "steps trained on copies that differ, without": (STEPS - STRIKES_AT, STEPS - STRIKES_AT),
    "largest change of the loss by it, percent": (0, 3),
    "checkpoints kept, without": (KEPT, KEPT),
    "of them with the wrong weight": (KEPT, KEPT),
    "alarms": (1, 1),
    "right rank named": (1, 1),
    "steps to detect": (1, COMPARED_EVERY),
    "step fallen back to": (SAVED_EVERY, SAVED_EVERY),
    "checkpoints saved between flip and alarm, with": (0, 0),
    "losses before the strike that differ": (0, 0),
    "last step": (STEPS, STEPS),
}
SCALE = Scale(
    share=(0.014, 0.055),
    hours_without=(3.0, 72.0),
    hours_with=(0.1, 3.5),
    reasons="Silent corruption in devices was 6 of 419 interruptions of Llama 3 (1.4 %) and 5.5 % of 678 at "
    "32K GPUs (arXiv 2602.00277); not every one hits a copy, and code that forgets a collective does the "
    "same. Without: from one checkpoint interval to the days after which BLOOM's was found, three taken. "
    "With: 50 steps and the interval before them, three hours at most, and half an hour to restart.",
)


def study(profile: Profile, folder: Path) -> Study:
    """Flip one bit of one rank's copy; train the usual way, and with copies that are compared."""
    profile = placed(profile, folder).model_copy(
        update={"processes": RANKS, "retention": Retention(keep_last=STEPS), "reliability": Reliability()}
    )
    shards = make_shards(RUN, profile)
    without, job, seen = _without(profile, shards, folder)
    with_pattern, jobs, outcome, measured = _with(profile, shards, folder)
    healthy, harmed = losses(jobs[-1]), losses(job)
    numbers = seen | measured | _compared(healthy, harmed) | _wrong(profile, folder / "stock" / "checkpoints")
    fault = outcome.faults[0]
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=outcome.faults,
        verdict=f"For {int(numbers['steps trained on copies that differ, without'])} steps three ranks "
        f"trained two models; the loss moved by {numbers['largest change of the loss by it, percent']:.2f} % "
        f"at most, and all {KEPT} checkpoints kept were of the wrong one. Compared every {COMPARED_EVERY} "
        f"steps, rank {fault.rank} was named {int(numbers['steps to detect'])} steps after the flip, before "
        "anything was saved.",
        notes=[
            "The bit is one of the exponent of one weight: 16 times as large, or as small. A bit of the "
            "mantissa is found the same way and harms less.",
            "The second attempt of the side with the pattern trains on healthy copies: its losses and "
            "checkpoints are what the other side is compared with.",
        ],
    )


def _job(job: Job, marker: Path) -> Job:
    """With the drill inside; a restarted one is spared."""
    flip = Drill(kind="flipped_replica", rank=0, step=STRIKES_AT, settings={"bit": BIT}, once=str(marker))
    return replace(job, environment=flip.environment)


def _without(profile: Profile, shards: Artifact, folder: Path) -> tuple[Side, Job, dict[str, float]]:
    """DeepSpeed's saves, and nobody who compares."""
    job = job_for(RUN, profile, shards)
    stock = {"folder": str(folder / "stock" / "checkpoints"), "keep": KEPT}
    job = replace(
        job,
        target="case_studies._desynced_train",
        settings={**job.settings, "stock": stock},
        folder=folder / "stock" / "job",
    )
    job, started = _job(job, folder / "struck-without"), time.time()
    outcome = supervise(lambda _: job, profile.launcher, LIMITS)
    ended, struck = time.time() - started, _struck(folder / "struck-without") - started
    told, line = outcome.result["divergence"], progress(job, started)
    if told is None or outcome.faults:
        raise StanchionError(f"copies were to differ and nobody to notice; {told=}, {outcome.faults=}")
    side = Side(
        summary=f"{STEPS} steps without an error. Looked at after the end: {told['reason']}.",
        spans=[
            Span(start=0, end=line[0][0], state="starting", text="starts"),
            Span(start=line[0][0], end=struck, state="healthy"),
            Span(start=struck, end=ended, state="harmed", text="trains two models"),
        ],
        events=[
            Event(at=struck, text="a bit of rank 0 flips", kind="fault"),
            Event(at=ended, text="done, all green", kind="blind"),
        ],
        progress=line,
    )
    numbers = {
        "steps trained on copies that differ, without": float(outcome.result["step"] - STRIKES_AT),
        "checkpoints kept, without": float(len(kept(folder / "stock" / "checkpoints"))),
    }
    return side, job, numbers


def _with(
    profile: Profile, shards: Artifact, folder: Path
) -> tuple[Side, list[Job], Outcome, dict[str, float]]:
    """The same flip, with copies that are compared."""
    marker, jobs, started = folder / "struck-with", list[Job](), time.time()

    def attempt(next_: Attempt) -> Job:
        jobs.append(_job(job_for(RUN, profile, shards, next_), marker))
        return jobs[-1]

    outcome = supervise(attempt, profile.launcher, LIMITS, detectors=profile.reliability.detectors_of)
    ended, struck = time.time() - started, _struck(marker) - started
    if [found.kind for found in outcome.faults] != ["replica_divergence"]:
        raise StanchionError(f"copies that differ were to end the job, and this did: {outcome.faults}")
    fault = outcome.faults[0]
    seen = fault.at.timestamp() - started
    outcome.faults[0] = fault.model_copy(update={"seconds_to_detect": seen - struck})
    numbers = {
        "alarms": float(len(outcome.faults)),
        "right rank named": float(fault.rank == 0),
        "steps to detect": float((fault.step or 0) - STRIKES_AT),
        "checkpoints saved between flip and alarm, with": float(_saves(jobs[0], seen, started)),
        "step fallen back to": float(outcome.result["first_step"]),
        "last step": float(outcome.result["step"]),
    }
    return _drawn(outcome.faults[0], jobs[0], started, ended), jobs, outcome, numbers


def _drawn(fault: Fault, job: Job, started: float, ended: float) -> Side:
    """The side with the pattern."""
    line, seen = progress(job, started), fault.at.timestamp() - started
    struck, recovered = seen - (fault.seconds_to_detect or 0.0), seen + (fault.seconds_to_recover or 0.0)
    return Side(
        summary=f"{fault.detail}. The job was ended before the next save and went on by itself.",
        spans=[
            Span(start=0, end=line[0][0], state="starting", text="starts"),
            Span(start=line[0][0], end=struck, state="healthy"),
            Span(start=struck, end=seen, state="harmed"),
            Span(start=seen, end=recovered, state="recovering", text="goes back"),
            Span(start=recovered, end=ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=struck, text="a bit of rank 0 flips", kind="fault"),
            Event(at=seen, text=f"rank {fault.rank} named", kind="seen"),
            Event(at=recovered, text=f"steps again from {SAVED_EVERY}", kind="mended"),
        ],
        progress=line,
    )


def _saves(job: Job, seen: float, started: float) -> int:
    """Of copies that differed, until it was seen."""
    saves = events.read(job.folder / "events", "save", rank=0)
    before = [event for event in saves if float(event["at"]) - started < seen]
    return sum(int(event["step"]) > STRIKES_AT for event in before)


def _compared(healthy: dict[int, float], harmed: dict[int, float]) -> dict[str, float]:
    """What a curve would have shown."""
    before = [step for step in healthy if step <= STRIKES_AT]
    after = [step for step in healthy if step > STRIKES_AT]
    changes = [abs(harmed[step] - healthy[step]) / healthy[step] for step in after]
    return {
        "losses before the strike that differ": float(sum(healthy[step] != harmed[step] for step in before)),
        "largest change of the loss by it, percent": 100 * max(changes),
    }


def _wrong(profile: Profile, stock: Path) -> dict[str, float]:
    """Checkpoints of either side with a weight that is not that of the healthy one of the same step."""
    import torch
    from safetensors.torch import load_file

    healthy = {}
    for url in restore.newest_first(checkpoints_of(RUN, profile)):
        known = state.read(url)
        if known is not None and known.state != "quarantined":
            weights = load_file(Path(url) / "model.safetensors")
            healthy[int(Path(url).name.split("-")[1])] = weights
    wrong = 0
    for folder in kept(stock):
        module = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=False)["module"]
        pairs = [(module[name], one) for name, one in healthy[int(folder.name.split("-")[1])].items()]
        wrong += any(float((mine - other).abs().max()) > WRONG_BY for mine, other in pairs)
    return {"of them with the wrong weight": float(wrong)}


def _struck(marker: Path) -> float:
    """Unix time of the flip."""
    at = struck_at(marker)
    if at is None:
        raise StanchionError(f"the drill never struck: there is no {marker}")
    return at
