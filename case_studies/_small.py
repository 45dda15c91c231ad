"""What the studies train: the real pre-training target on a few real files, small enough for two cores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from components.config import Data, Profile, Run
from components.data import manifest as manifests
from components.data.curation.curate import curate
from components.data.shards import split_of
from components.data.writing import vocabulary
from components.data.writing.dataset import make_dataset
from components.jobs import Job
from components.observability import events
from components.plugins import load, name_of
from components.records import Artifact, RunFolder
from components.study import Span
from components.training.config import Model
from components.training.curve import by_step

DATA = Data.model_validate(
    {
        "source": {"kind": "python_stdlib", "max_documents": 80},
        "tokenizer": {"vocab_size": 512},
        "shards": {"documents_per_shard": 64, "held_out_share": 0.15},
    }
)
MODEL = Model(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, context_length=64)

WRITES = "stock save: writes"
"""Where a drill may hold up a rank of `_stock_train` that is about to write a file."""

Line = list[tuple[float, float]]
"""Seconds and steps done."""


def progress(job: Job, started: float, at: float = 0.0) -> Line:
    """Steps since `started` as rank 0 wrote them, on a clock that says `at` then."""
    steps = [event for event in events.read(job.folder / "events", "step", rank=0) if event["at"] >= started]
    return [(at + float(event["at"]) - started, float(event["step"])) for event in steps]


def until(struck: float, line: Line) -> Iterator[Span]:
    """From the launch to the fault, for a timeline."""
    yield Span(start=0, end=line[0][0], state="starting", text="starts")
    yield Span(start=line[0][0], end=struck, state="healthy", text="trains")


def losses(job: Job) -> dict[int, float]:
    """The loss of every step over all attempts; one that was repeated counts as done last."""
    return dict(by_step(job.folder / "events", "step", "loss"))


def kept(folder: Path) -> list[Path]:
    """What DeepSpeed has saved there, oldest first."""
    return sorted(folder.glob("step-*"))


def placed(profile: Profile, folder: Path) -> Profile:
    """The profile with everything that a study makes kept in the study's folder."""
    return profile.model_copy(
        update={"storage": profile.storage.model_copy(update={"root": str(folder), "scratch": None})}
    )


def make_shards(run: Run, profile: Profile) -> Artifact:
    """The data set of a study, by the same components as any other."""
    folder, data = RunFolder(profile.storage.root, run.id), run.data
    source = load("components.data.sources", name_of(data.source))
    checked = curate(
        source.read(data.source),
        data.checks,
        scratch=folder.scratch("curation"),
        split_of=partial(split_of, config=data.shards),
    )
    trained = vocabulary.learn(checked.kept, data.tokenizer, data.shards)
    url = folder.path("shards")
    make_dataset(
        checked, trained, url, source=data.source, config=data.shards, scratch=folder.scratch("shards")
    )
    return Artifact(name="shards", url=url, digest=manifests.digest(url))
