"""The shard of which half was gone, and no loader said so.

Symptom: evaluations drifted between two runs of the same configuration; epochs were a little shorter on one
cluster than on another; nobody found an error in any log.

Timeline: one bit flips in a header of a tar, at rest or in a copy; the tar library takes the damaged header
for the end of the archive; the loader goes on with the next shard; half the samples of the shard are never
seen again, epoch after epoch. Elsewhere the bit flips in a payload: the sample is delivered, and trained on.

Cause: a tar has a checksum for each header and none for its content, and its readers treat a broken header
as the end. WebDataset keeps no count and no sum of what a shard should hold, so an epoch ends well whatever
is missing.

Sources: the behaviour of CPython's `tarfile` and of webdataset 1.0.2, reproduced here; webdataset/webdataset
issue 432 (truncated shards), pull request 503 (a cache that accepts any file that looks like a tar); the
same blindness in loaders with formats of their own: litdata keeps no sum of a chunk, mosaicml-streaming
checks its hashes when it downloads and never again.

The drill: two real ranks train from real shards. One bit of a header and one bit of a sample's token ids are
flipped, in two shards; the stock loader reads an epoch; then forty more bits, one at a time, on both.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from case_studies._small import DATA, MODEL, make_shards, placed, progress
from case_studies._stock_loads import flip as flip_bit
from components import storage
from components.config import Profile, Run
from components.data import integrity, tar
from components.data.manifest import Shard
from components.data.mending.quarantine import table
from components.data.mending.rebuild import rebuild
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.shards import Config as Shards
from components.data.stream import TokenStream
from components.errors import JobFailed, ShardIntegrityError, StanchionError
from components.jobs import Job
from components.launchers import local
from components.records import Artifact, Fault
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.study import Allowed, Event, Scale, Side, Span, Study
from components.training.config import Training
from components.training.job import job_for

TITLE = "Half a shard is gone, and nothing says so"
PATTERN = "Shard Manifest"
PATTERNS = ["Shard Manifest", "Quarantine with a Budget"]
FLIPS, STEPS, EPOCHS = 40, 24, 60
RUN = Run(
    name="rotten-shard",
    data=DATA.model_copy(update={"shards": Shards(documents_per_shard=12, held_out_share=0.15)}),
    model=MODEL,
    training=Training(steps=STEPS, checkpoint_every=STEPS, evaluate_every=STEPS, held_out_sequences=16),
)
SKIPS = {"on_fault": "skip", "max_documents": 2, "max_share": 0.05}
AS_IT_IS = "-"
LIMITS = Limits(max_restarts=0)

CHECKLIST = [
    "A list of shards with counts and digests is written after all of them, and readers start from it.",
    "Every sample is compared with a checksum each time it is read, not only when it is downloaded.",
    "A damaged sample stops the run by default, with the names of shard and key.",
    "Skipping has a budget; every sample skipped is an event and a row in a table.",
    "A skipped sample leaves a hole: its neighbours keep their places.",
    "A damaged shard can be built again from its source, and must come out bit by bit the same.",
]
CARRIES_OVER = (
    "yes",
    "Tars, readers and checksums are the same beside a GPU. What grows is the number of shards, and with it "
    "the chance that one is damaged; the checksum of a sample costs well under a microsecond a kilobyte.",
)
EXPECT: dict[str, Allowed] = {
    "share of the shard lost, stock loader": (0.3, 0.7),
    "wrong samples delivered, stock loader": (1, 1),
    "errors of the stock loader": (0, 0),
    "flips tried": (FLIPS, FLIPS),
    "silent share, stock loader": (0.5, 1),
    "silent share, checked reader": (0, 0),
    "refused share, check": (1, 1),
    "steps trained on a wrong sample": (0, 0),
    "shards named by the check": (2, 2),
    "samples dropped within the budget": (1, 1),
    "shards rebuilt to the bit": (2, 2),
    "last step": (STEPS, STEPS),
}
SCALE = Scale(
    share=(0.001, 0.014),
    hours_without=(3.0, 48.0),
    hours_with=(0.1, 1.0),
    reasons="Silent corruption was 6 of 419 interruptions of Llama 3 (1.4 %), in devices; 0.1 % is an "
    "assumption for storage alone. Without: found by an evaluation hours or days later, and what was trained "
    "since is in doubt. With: minutes to build the shard again, or none when skipping is within the budget.",
)


@dataclass(frozen=True)
class Epoch:
    """What a trainer would have seen of an epoch on the stock loader."""

    seconds: float
    error: str
    samples: dict[str, str]
    """Digest by key."""


def study(profile: Profile, folder: Path) -> Study:
    """Flip two bits in real shards; read and train the usual way, and the checked way."""
    profile = placed(profile, folder)
    shards = make_shards(RUN, profile)
    root = storage.local_path(shards.url)
    [whole] = _epochs(root, AS_IT_IS)
    flips = _many_flips(root, folder / "flips", whole)
    cut, wrong = _two_flips(root)
    started = time.time()
    epochs = _epochs(root, *[AS_IT_IS] * EPOCHS)
    read, damaged = time.time() - started, epochs[-1]
    lost = [key for key in _keys(root, cut) if key not in damaged.samples]
    changed = [key for key, digest in damaged.samples.items() if whole.samples[key] != digest]
    without = _usual(epochs, read, whole, len(lost), cut)
    with_pattern, measured, fault = _checked(profile, shards, folder)
    numbers = {
        "share of the shard lost, stock loader": len(lost) / cut.samples,
        "wrong samples delivered, stock loader": float(len(changed)),
        "errors of the stock loader": float(sum(bool(epoch.error) for epoch in epochs)),
        **flips,
        **measured,
    }
    return Study(
        without=without,
        with_pattern=with_pattern,
        numbers=numbers,
        faults=[fault],
        verdict=_verdict(numbers),
        notes=[
            f"Flipped: the header of a sample in the middle of {cut.name}, and a token of {wrong.name}.",
            "A flip that neither loses nor changes a sample (padding) is not counted as silent; the check "
            "refuses it all the same.",
        ],
    )


def _epochs(root: Path, *flips: str) -> list[Epoch]:
    """Every train shard on the stock loader, once for each flip."""
    done = subprocess.run(
        [sys.executable, "-m", "case_studies._stock_stream", str(root), *flips],
        env=local.environment(Job("epoch", "", {}, root.parent, 1)),
        cwd=local.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise StanchionError(f"the stock loader could not be started:\n{done.stderr[-2000:]}")
    return [_understood(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def _understood(report: dict[str, Any]) -> Epoch:
    return Epoch(
        seconds=report["seconds"],
        error=report["error"],
        samples=dict(report["seen"]),
    )


def _many_flips(root: Path, folder: Path, whole: Epoch) -> dict[str, float]:
    """One bit after another on a copy: what the stock loader, the reader and the check make of each."""
    shutil.copytree(root, folder, dirs_exist_ok=True)
    with Reader(str(root)) as reader:
        shards = reader.manifest.shards_of("train")
        expected = sorted(SampleStream(reader, "train").read(0, len(whole.samples)))
    draw = random.Random(RUN.seed)
    drawn = [(shards[turn % len(shards)], draw.random(), draw.randrange(8)) for turn in range(FLIPS)]
    places = [(shard.name, int(share * shard.bytes), bit) for shard, share, bit in drawn]
    epochs = _epochs(folder, *(f"{name}:{offset}:{bit}" for name, offset, bit in places))
    stock = sum(not epoch.error and epoch.samples != whole.samples for epoch in epochs)
    reads = refused = 0
    for name, offset, bit in places:
        flip_bit(folder / name, offset, bit)
        reads += _reads_something_else(folder, expected)
        refused += bool(integrity.faults_of(str(folder)))
        flip_bit(folder / name, offset, bit)
    return {
        "flips tried": float(len(epochs)),
        "silent share, stock loader": stock / FLIPS,
        "silent share, checked reader": reads / FLIPS,
        "refused share, check": refused / FLIPS,
    }


def _reads_something_else(folder: Path, expected: list[bytes]) -> bool:
    """Whether the checked reader hands out, without an error, anything but what was written."""
    try:
        with Reader(str(folder)) as reader:
            return sorted(SampleStream(reader, "train").read(0, len(expected))) != expected
    except ShardIntegrityError:
        return False


def _two_flips(root: Path) -> tuple[Shard, Shard]:
    """The incident: a header in the middle of one shard; in another a token of a sample that is read late."""
    with Reader(str(root)) as reader:
        late = _stream(reader).origin(STEPS // 2, 0)
        wrong, row = late.shard, late.pieces[0].row
        cut = next(shard for shard in reader.manifest.shards_of("train") if shard != wrong)
        middle = int(reader.index(cut)["offset"][cut.samples // 2])
        token = int(reader.index(wrong)["npy"]["start"][row]) + tar.BLOCK
    flip_bit(root / cut.name, middle, 0)
    flip_bit(root / wrong.name, token, 3)
    return cut, wrong


def _stream(reader: Reader) -> TokenStream:
    """What the job reads."""
    return TokenStream(
        reader,
        "train",
        sequence_length=RUN.model.context_length,
        batch_size=RUN.training.batch_size,
        seed=RUN.seed,
    )


def _keys(root: Path, shard: Shard) -> list[str]:
    with Reader(str(root)) as reader:
        return [reader.key(shard, row) for row in range(shard.samples)]


def _usual(epochs: list[Epoch], read: float, whole: Epoch, lost: int, cut: Shard) -> Side:
    """What a person would have seen."""
    begun = read - sum(epoch.seconds for epoch in epochs)
    first = begun + epochs[0].seconds
    return Side(
        summary=f"Every one of {len(epochs)} epochs ended well after {len(epochs[-1].samples)} of "
        f"{len(whole.samples)} samples: {lost} of {cut.name} were never read, one of another shard was "
        f"wrong each time, and no line was logged.",
        spans=[
            Span(start=0, end=begun, state="starting", text="starts"),
            Span(start=begun, end=read, state="harmed", text=f"reads {len(epochs)} epochs of what is left"),
        ],
        events=[
            Event(at=0, text="two bits flipped", kind="fault"),
            Event(at=first, text="an epoch ends, no error", kind="blind"),
            Event(at=read, text="still none", kind="blind"),
        ],
    )


def _checked(profile: Profile, shards: Artifact, folder: Path) -> tuple[Side, dict[str, float], Fault]:
    """The same shards by the way that every job of this platform reads: refused, skipped, built again."""
    job, started = job_for(RUN, profile, shards), time.time()
    message = _refusal(job, profile)
    seen = time.time() - started
    steps = progress(job, started, 0)
    skipping, dropped = _with_a_budget(job, profile)
    faults = integrity.faults_of(shards.url)
    before = time.time()
    rebuilt = rebuild(shards.url, scratch=folder / "rebuilt")
    integrity.check_dataset(shards.url, digest=shards.digest)
    mended = time.time() - before
    again, begun = replace(job, folder=job.folder.with_name("again")), time.time()
    outcome = supervise(lambda _: again, profile.launcher, LIMITS)
    after = progress(again, begun, seen + mended)
    recovered = after[0][0] if after else seen + mended
    fault = Fault(
        kind="corruption",
        detail=message.replace(shards.url, "the data set"),  # a result that is kept names no machine
        at=datetime.fromtimestamp(started + seen, UTC),
        seconds_to_detect=seen,
        seconds_to_recover=recovered - seen,
        recovered=outcome.result["step"] == STEPS,
    )
    side = Side(
        summary=f"The job stopped and named shard and sample; {' and '.join(rebuilt)} were built again to "
        f"the bit in {mended:.1f} s, and the job ran to step {STEPS}. With a budget it skips {dropped} "
        f"sample instead, a row in a table, and reaches step {skipping.result['step']} as well.",
        spans=[
            Span(start=0, end=seen, state="starting", text="starts, is refused"),
            Span(start=seen, end=recovered, state="recovering", text="shards built again"),
            Span(start=recovered, end=seen + mended + outcome.seconds, state="healthy", text="trains"),
        ],
        events=[
            Event(at=0, text="two bits flipped", kind="fault"),
            Event(at=seen, text="sample refused by name", kind="seen"),
            Event(at=recovered, text="trains on whole shards", kind="mended"),
        ],
        progress=steps + after,
    )
    numbers = {
        "steps trained on a wrong sample": float(_wrong_steps(shards, faults, int(steps[-1][1]))),
        "shards named by the check": float(len({fault.shard for fault in faults})),
        "samples dropped within the budget": float(dropped),
        "shards rebuilt to the bit": float(len(rebuilt)),
        "last step": float(outcome.result["step"]),
    }
    return side, numbers, fault


def _refusal(job: Job, profile: Profile) -> str:
    """What the job says when it meets the wrong sample; going on would be the incident."""
    try:
        supervise(lambda _: job, profile.launcher, LIMITS)
    except JobFailed as error:
        found = [line for line in str(error).splitlines() if ShardIntegrityError.__name__ in line]
        return found[-1].partition(f"{ShardIntegrityError.__name__}: ")[2] if found else str(error)
    raise StanchionError(f"{STEPS} steps were trained on shards with two flipped bits")


def _with_a_budget(job: Job, profile: Profile) -> tuple[Outcome, int]:
    """The same job told to skip within a budget; the samples in its table."""
    folder = job.folder.with_name("skipping")
    training = {**job.settings["training"], "damaged_samples": SKIPS}
    aside = {
        "training": training,
        "checkpoints": str(folder / "checkpoints"),
        "scratch": str(folder / "draft"),
    }
    skipping = replace(job, folder=folder, settings={**job.settings, **aside})
    outcome = supervise(lambda _: skipping, profile.launcher, LIMITS)
    return outcome, len(table(folder / "quarantine"))


def _wrong_steps(shards: Artifact, faults: list[ShardIntegrityError], steps: int) -> int:
    """Steps done before the refusal whose batch holds a piece of a damaged sample."""
    hurt = {(fault.shard, fault.key) for fault in faults if fault.key}
    with Reader(shards.url) as reader:
        stream = _stream(reader)
        rows = [stream.origin(step, row) for step in range(steps) for row in range(stream.batch_size)]
        damaged = [
            origin
            for origin in rows
            for piece in origin.pieces
            if (origin.shard.name, reader.key(origin.shard, piece.row)) in hurt
        ]
    return len(damaged)


def _verdict(numbers: dict[str, float]) -> str:
    return (
        f"One flipped bit hid {numbers['share of the shard lost, stock loader']:.0%} of a shard from the "
        f"stock loader, another reached it as a wrong sample, and it raised nothing; of {FLIPS} more, "
        f"{numbers['silent share, stock loader']:.0%} passed in silence. Here each was refused by name, and "
        f"both shards were built again to the bit."
    )
