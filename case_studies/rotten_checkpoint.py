"""The checkpoint that rotted unseen, and was trained on.

Symptom: a resumed run looked normal; hours later the loss was wrong, and every checkpoint kept since then
had the damage inside. Elsewhere a corrupted weights file was served, and answers were truncated at random.

Timeline: a bit flips in a file at rest, in a copy, or in the memory it is written from; the file still
opens; `torch.load`, safetensors and DeepSpeed load it without an error; the first loss after the resume can
even be the same, because the damaged part is an optimizer state; training goes on from there and saves over
the good copies.

Cause: the formats carry no sum that is checked. torch's archives hold CRCs that its reader does not
compare, safetensors holds none, and DeepSpeed trusts both.

Sources: pytorch/pytorch issue 126952 (CRC checks compiled out); vllm-project/vllm pull 53537 (corrupted
safetensors served silently, "extremely hard to diagnose"); NVIDIA/Megatron-LM pull 6920 (a resumed run
silently went on from a different model).

The drill: two real ranks train under DeepSpeed ZeRO-2 and save three validated checkpoints; single bits of
the newest are flipped; the usual loaders and the sealed checkpoint are asked about each. Then the job is
killed and resumed from a rotten one both ways, and trains for twelve hours, of which a step stands for a
quarter of one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from case_studies._small import DATA, MODEL, Line, kept, losses, make_shards, placed, progress
from case_studies._stock_loads import flip as flip_bit
from components import storage
from components.checkpoints import restore, state
from components.checkpoints.check import FILES_ONLY, decide, default_gates
from components.checkpoints.config import Config as Checkpoints
from components.config import Profile, Run
from components.errors import CheckpointError, JobFailed, StanchionError
from components.jobs import Job
from components.launchers import local
from components.records import Fault
from components.reliability.faults import Drill
from components.reliability.finding import Attempt
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study, hours_lost
from components.training.config import Training
from components.training.job import checkpoints_of, job_for

TITLE = "A checkpoint rots, and nothing says so"
PATTERN = "Sealed Checkpoint"
FLIPS, CRASHES_AFTER, SAVED_EVERY, KEPT = 40, 12, 4, 3
HOURS_PER_STEP, SEEN_AFTER_HOURS = 0.25, 12.0
"""Simulated: what a step stands for, and how long the damage is trained on until somebody sees it."""
MORE_STEPS = round(SEEN_AFTER_HOURS / HOURS_PER_STEP)
STEPS = CRASHES_AFTER + MORE_STEPS
RUN = Run(
    name="rotten-checkpoint",
    data=DATA,
    model=MODEL,
    training=Training(
        steps=STEPS,
        checkpoint_every=SAVED_EVERY,
        evaluate_every=SAVED_EVERY,
        held_out_sequences=16,
        checkpoints=Checkpoints(asynchronous=False),  # what is to rot is whole when the job is killed
    ),
)
LIMITS = Limits(max_restarts=0)
DAMAGES = ("cut short", "lost", "of another step", "exchanged", "forged")

CHECKLIST = [
    "Digests are taken of the tensors in memory, before they are written.",
    "Nothing is unpickled before every file matches the manifest.",
    "A file too many, a file too few and a file of another step are refused like a flipped bit.",
    "What is refused is set aside with its reason, and never loaded again.",
    "A resume falls back to the newest checkpoint that is still whole, by itself.",
    "After loading, tensors are compared with their digests; an equal first loss proves nothing.",
    "Retention never deletes the last checkpoint that was verified.",
]
CARRIES_OVER = (
    "yes",
    "File formats, loaders and manifest are the same on GPUs. What grows is the time to hash: SHA-256 "
    "runs at about a gigabyte a second and core, and each host hashes its own shards. Not measured here: "
    "object stores, and damage done in device memory before the digest is taken.",
)
EXPECT: dict[str, Allowed] = {
    "flips tried": (FLIPS, FLIPS),
    "silent share, usual loaders": (0.5, 1),
    "refused share, sealed": (1, 1),
    "share that names the file": (1, 1),
    "other damage refused (of 5)": (5, 5),
    "wrong tensors after a usual resume": (1, None),
    "first loss after it, difference from a healthy one": (0, 0),
    "hours trained on damage without an error (simulated)": (SEEN_AFTER_HOURS, SEEN_AFTER_HOURS),
    "checkpoints kept then from before the damage": (0, 0),
    "share of weights that differ then": (0.01, 1),
    "seconds to refuse": (0, 2),
    "step fallen back to": (CRASHES_AFTER - SAVED_EVERY, CRASHES_AFTER - SAVED_EVERY),
    "hours repeated (simulated)": (SAVED_EVERY * HOURS_PER_STEP, SAVED_EVERY * HOURS_PER_STEP),
    "last step": (STEPS, STEPS),
}
LOST = partial(hours_lost, interval=SAVED_EVERY * HOURS_PER_STEP, kept=KEPT, archived_every=24.0, restart=0.1)
"""By the habits of the simulated job: a save an hour, three kept, one a day archived, a quick restart."""
SCALE = Scale(
    share=(0.001, 0.014),
    hours_without=LOST(seen_after=SEEN_AFTER_HOURS),
    hours_with=LOST(seen_after=0),
    reasons="Silent corruption was 6 of 419 interruptions of Llama 3 (1.4 %), in devices; 0.1 % is an "
    "assumption for storage alone. Assumed of the job: a save an hour, the newest three kept, one a day "
    "archived, six minutes to restart. Without: seen twelve hours after the resume, when the three that are "
    "kept have the damage in them; what follows the archived one from before is repeated, which is an hour "
    "older than the damage at best and a day at worst. With: refused at the load, and an hour is repeated. "
    "The price is an assumption too.",
)


@dataclass(frozen=True)
class Flip:
    """One flipped bit, and what the usual loader made of it."""

    file: str
    offset: int
    bit: int
    outcome: str
    changed: list[str]

    @property
    def is_in_optimizer(self) -> bool:
        """Whether it loads silently into the masters or moments that rank 0 holds."""
        tensors = ("fp32_flat_groups", "exp_avg")
        mine = "zero_pp_rank_0_" in self.file and self.outcome == "silent"
        return mine and any(name in place for place in self.changed for name in tensors)


@dataclass(frozen=True)
class Refusal:
    """What the sealed checkpoint said of one damage."""

    refused: bool
    named: bool
    seconds: float


def study(profile: Profile, folder: Path) -> Study:
    """Flip bits in a real checkpoint; resume from it the usual way, and the sealed way."""
    profile = placed(profile, folder)
    attempt = partial(job_for, RUN, profile, make_shards(RUN, profile))
    started, first = time.time(), attempt()
    newest = _train(first, profile)
    trained = time.time() - started
    flips = _usual_loads(_copy(newest, folder / "usual"))
    refusals = [_refusal_of(flip, _copy(newest, folder / "sealed")) for flip in flips]
    damaged = [_other_damage(damage, newest, folder / "damaged") for damage in DAMAGES]
    rotten = next(flip for flip in flips if flip.is_in_optimizer)
    flip_bit(storage.local_path(newest) / rotten.file, rotten.offset, rotten.bit)
    before = progress(first, started, 0.0)
    without, seen, wrong = _usual_resume(first, newest, profile, trained, before)
    with_pattern, measured, fault = _sealed_resume(attempt, newest, profile, trained, before)
    again = _later(losses(first), storage.local_path(checkpoints_of(RUN, profile)), wrong)
    numbers = _shares(flips, refusals, damaged) | seen | again | measured
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=[fault],
        verdict=_verdict(numbers),
        notes=[
            "A flip that changes no value at all (padding of the archive) is not counted as silent.",
            f"Both resumes: bit {rotten.bit} at offset {rotten.offset:,} of {rotten.file} is flipped.",
            f"The usual side keeps its newest {KEPT} checkpoints. Whether a loss shows the damage depends on "
            "the bit: after twelve hours this one's was off by "
            f"{abs(wrong.losses[STEPS] - losses(first)[STEPS]):.1g} nats.",
        ],
    )


def _train(job: Job, profile: Profile) -> str:
    """Three checkpoints that the gates vouch for, and the crash after which one is needed; the newest."""
    crash = Drill(kind="kill", step=CRASHES_AFTER + 1)
    try:
        supervise(lambda _: replace(job, environment=crash.environment), profile.launcher, LIMITS)
    except JobFailed:
        checkpoints = checkpoints_of(RUN, profile)
        for url in reversed(list(restore.newest_first(checkpoints))):
            decide(url, default_gates(*FILES_ONLY))
        return next(restore.newest_first(checkpoints))
    raise StanchionError(f"the job was to be killed at step {CRASHES_AFTER + 1}, and ended well")


def _copy(checkpoint: str, folder: Path) -> Path:
    """The checkpoint and its state, in a place where they may be damaged."""
    source = storage.local_path(checkpoint)
    if folder.exists():
        shutil.rmtree(folder)
    copy = folder / source.name
    shutil.copytree(source, copy)
    shutil.copyfile(storage.local_path(state.url_of(checkpoint)), state.url_of(str(copy)))
    return copy


def _usual_loads(checkpoint: Path) -> list[Flip]:
    """Flip bits one by one, and load with what everybody loads with."""
    command = [sys.executable, "-m", "case_studies._stock_loads", str(checkpoint), str(FLIPS), str(RUN.seed)]
    surroundings = local.environment(Job("flips", "", {}, checkpoint.parent, 1))
    done = subprocess.run(
        command, env=surroundings, cwd=local.ROOT, capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise StanchionError(f"flipping bits in {checkpoint} failed:\n{done.stderr[-2000:]}")
    return [Flip(**json.loads(line)) for line in done.stdout.splitlines()]


def _refusal_of(flip: Flip, checkpoint: Path) -> Refusal:
    """Open a checkpoint with this bit flipped."""
    flip_bit(checkpoint / flip.file, flip.offset, flip.bit)
    return _ask(checkpoint, flip.file)


def _ask(checkpoint: Path, name: str) -> Refusal:
    started = time.perf_counter()
    try:
        restore.open_checkpoint(str(checkpoint))
    except CheckpointError as error:
        return Refusal(True, name in str(error), time.perf_counter() - started)
    return Refusal(False, False, time.perf_counter() - started)


def _other_damage(damage: str, checkpoint: str, folder: Path) -> Refusal:
    """What else happens to files: cut short, lost, left over from another step, exchanged, forged."""
    copy = _copy(checkpoint, folder)
    weights, manifest = copy / "model.safetensors", copy / "manifest.json"
    mine, other = sorted(copy.glob("deepspeed/*zero_pp_rank_[01]_*optim_states.pt"))[:2]
    if damage == "cut short":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "lost":
        mine.unlink()
    elif damage == "of another step":
        earlier = storage.local_path(checkpoint).parent / f"step-{CRASHES_AFTER - SAVED_EVERY:06d}"
        shutil.copyfile(earlier / "deepspeed" / mine.name, mine)
    elif damage == "exchanged":
        mine.rename(aside := copy / "aside")
        other.rename(mine)
        aside.rename(other)
    else:
        manifest.write_text(manifest.read_text().replace("sha256", "sha255", 1))
    return _ask(copy, "")


def _shares(flips: list[Flip], refusals: list[Refusal], damaged: list[Refusal]) -> dict[str, float]:
    count = len(flips)
    return {
        "flips tried": float(count),
        "silent share, usual loaders": sum(flip.outcome == "silent" for flip in flips) / count,
        "refused share, sealed": sum(refusal.refused for refusal in refusals) / count,
        "share that names the file": sum(refusal.named for refusal in refusals) / count,
        f"other damage refused (of {len(DAMAGES)})": float(sum(one.refused for one in damaged)),
        "seconds to refuse": max(refusal.seconds for refusal in refusals),
    }


@dataclass(frozen=True)
class Wrong:
    """What the usual way has come to."""

    losses: dict[int, float]
    kept: list[Path]


def _usual_resume(
    first: Job, newest: str, profile: Profile, trained: float, before: Line
) -> tuple[Side, dict[str, float], Wrong]:
    """DeepSpeed's own resume from the rotten checkpoint, twelve hours of training, and its own saves."""
    folder, started = first.folder.with_name("usual-resume"), time.time()
    stock = {
        "sealed": newest,
        "folder": str(folder / "checkpoints"),
        "keep": KEPT,
        "stop_at_nan": False,
    }
    job = replace(
        first,
        name="usual-resume",
        target="case_studies._stock_train",
        settings={**first.settings, "stock": stock},
        folder=folder,
    )
    outcome = supervise(lambda _: job, profile.launcher, LIMITS)
    changed, ended = outcome.result["changed"], trained + outcome.seconds
    side = Side(
        summary=f"The resume reported nothing; on rank 0, {', '.join(changed)} was not what had been saved. "
        f"{MORE_STEPS} more steps, twelve simulated hours, ran without an error, and the {KEPT} checkpoints "
        "kept by then all came from the damage.",
        spans=[
            Span(start=0, end=before[0][0], state="starting", text="starts"),
            Span(start=before[0][0], end=trained, state="healthy", text="trains, saves"),
            Span(start=trained, end=ended, state="harmed", text="resumes, trains on damage"),
        ],
        events=[
            Event(at=trained, text="one bit flips", kind="fault"),
            Event(at=ended, text="12 hours later, no error", kind="blind"),
        ],
        progress=before + progress(job, started, trained),
    )
    steps = outcome.result["step"] - outcome.result["first_step"]
    numbers = {
        "wrong tensors after a usual resume": float(len(changed)),
        "hours trained on damage without an error (simulated)": steps * HOURS_PER_STEP,
    }
    return side, numbers, Wrong(losses(job), kept(folder / "checkpoints"))


def _later(healthy: dict[int, float], checkpoints: Path, wrong: Wrong) -> dict[str, float]:
    """The run on damage against the one that fell back: at its first step, and twelve hours later."""
    import torch
    from safetensors.torch import load_file

    first = CRASHES_AFTER + 1
    good = load_file(checkpoints / f"step-{STEPS:06d}" / "model.safetensors")
    [path] = wrong.kept[-1].glob("*model_states.pt")
    bad = torch.load(path, weights_only=False)["module"]  # as DeepSpeed does
    differ = sum(int((bad[name] != weight).sum()) for name, weight in good.items())
    before = [one for one in wrong.kept if int(one.name.partition("-")[2]) <= CRASHES_AFTER]
    return {
        "first loss after it, difference from a healthy one": abs(wrong.losses[first] - healthy[first]),
        "checkpoints kept then from before the damage": float(len(before)),
        "share of weights that differ then": differ / sum(weight.numel() for weight in good.values()),
    }


def _sealed_resume(
    attempt: Callable[[Attempt], Job], newest: str, profile: Profile, trained: float, before: Line
) -> tuple[Side, dict[str, float], Fault]:
    """The same rotten checkpoint, by the way that every job of this platform resumes."""
    started = time.time()
    job = attempt(Attempt(1))  # looks for a checkpoint to go on from
    refused = time.time() - started
    outcome = supervise(lambda _: job, profile.launcher, LIMITS)
    fell_back, ended = int(outcome.result["first_step"]), trained + refused + outcome.seconds
    again = progress(job, started, trained)
    recovered = again[0][0] if again else ended
    known = state.read(newest)
    assert known is not None, "it was validated before its bit was flipped"
    reason = (known.reason or "").removeprefix(f"{newest}: ")
    fault = Fault(
        kind="corruption",
        detail=f"step {CRASHES_AFTER} {known.state}: {reason}; went on from step {fell_back}",
        at=datetime.fromtimestamp(started + refused, UTC),
        step=CRASHES_AFTER,
        seconds_to_detect=refused,
        seconds_to_recover=recovered - trained,
        recovered=known.state == "quarantined" and outcome.result["step"] == STEPS,
    )
    side = Side(
        summary=f"Step {CRASHES_AFTER} was refused before a byte of it was unpickled, set aside with its "
        f"reason, and the job went on from step {fell_back} by itself.",
        spans=[
            Span(start=0, end=before[0][0], state="starting", text="starts"),
            Span(start=before[0][0], end=trained, state="healthy", text="trains, saves"),
            Span(start=trained, end=recovered, state="recovering", text="falls back"),
            Span(start=recovered, end=ended, state="healthy", text="trains"),
        ],
        events=[
            Event(at=trained, text="one bit flips", kind="fault"),
            Event(at=trained + refused, text=f"step {CRASHES_AFTER} refused", kind="seen"),
            Event(at=recovered, text=f"steps again from {fell_back}", kind="mended"),
        ],
        progress=before + again,
    )
    numbers = {
        "step fallen back to": float(fell_back),
        "hours repeated (simulated)": (CRASHES_AFTER - fell_back) * HOURS_PER_STEP,
        "last step": float(outcome.result["step"]),
    }
    return side, numbers, fault


def _verdict(numbers: dict[str, float]) -> str:
    return (
        f"{numbers['silent share, usual loaders']:.0%} of {FLIPS} flipped bits loaded without an error the "
        f"usual way; after twelve simulated hours {numbers['share of weights that differ then']:.0%} of the "
        f"weights differed and no checkpoint from before was kept. The sealed one refused "
        f"{numbers['refused share, sealed']:.0%}, and {numbers['hours repeated (simulated)']:g} hour was "
        f"repeated, from step {int(numbers['step fallen back to'])}."
    )
