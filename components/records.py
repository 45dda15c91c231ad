"""The record every stage leaves: what went in, what came out, what was measured, what it cost.

Gates, maturity, reports and plots read records, never another stage's memory. The digests of inputs and
outputs make the lineage: raw text -> shards -> checkpoint -> weights -> deployment.

Pattern: Run Record
Problem: a finished job says nothing about what it read, what it cost or who judged it.
Answer: one versioned JSON file a stage, written atomically, with content digests on both ends.
Trade-off: every stage must say what it consumes and produces, also the quick ones.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from components import storage
from components.errors import GateRefused, StageMissing

SCHEMA_VERSION = 1


class Artifact(BaseModel):
    """A thing that a stage read or made, known by its content."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """What it is: `shards`, `checkpoint`, `weights`, `deployment`."""

    url: str
    """Where it lies."""

    digest: str
    """Hex SHA-256 of its content, or of the manifest that lists the digests of its parts."""


class Verdict(BaseModel):
    """What one gate said, with the figures it decided on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gate: str
    passed: bool
    reason: str
    figures: dict[str, float | int | str | bool | None] = {}


class Fault(BaseModel):
    """Something that went wrong while a stage ran, and what was done about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    """`stall`, `crash`, `corruption`, `bad_document`."""

    detail: str
    at: datetime
    rank: int | None = None
    step: int | None = None
    seconds_to_detect: float | None = None
    seconds_to_recover: float | None = None
    recovered: bool = False


class Record(BaseModel):
    """One stage of one run, as it ended."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    stage: str
    run_id: str
    status: Literal["completed", "refused", "failed"]
    reason: str | None = None
    profile: str
    git_commit: str | None
    config_digest: str
    config: dict[str, Any] = {}
    inputs: list[Artifact] = []
    outputs: list[Artifact] = []
    metrics: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    faults: list[Fault] = []
    device_seconds: float = 0.0
    """Seconds of wall time, times the devices that were held."""
    cost: float = 0.0
    currency: str = "USD"
    started_at: datetime
    ended_at: datetime

    def output(self, name: str) -> Artifact:
        """The output called `name`."""
        for artifact in self.outputs:
            if artifact.name == name:
                return artifact
        made = ", ".join(a.name for a in self.outputs) or "nothing"
        raise StageMissing(f"stage '{self.stage}' left no '{name}'; it left {made}")

    @property
    def seconds(self) -> float:
        """Wall time of the stage."""
        return (self.ended_at - self.started_at).total_seconds()


@dataclass(frozen=True)
class RunFolder:
    """`<storage root>/<run id>/`: where one run keeps everything it makes."""

    root: str
    run_id: str
    scratch_root: str | None = None

    @property
    def url(self) -> str:
        """The run's folder."""
        return storage.join(self.root, self.run_id)

    def path(self, *parts: str) -> str:
        """A place in the run's folder: `shards`, `checkpoints`, `weights`, `events`, `records`, `report`."""
        return storage.join(self.url, *parts)

    def scratch(self, name: str) -> Path:
        """A local folder for what is being written, on the same file system as the run when that is local."""
        base = self.scratch_root or (self.root if storage.is_local(self.root) else "scratch")
        folder = (storage.local_path(base) / self.run_id / "scratch" / name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def read(self, stage: str) -> Record | None:
        """The record of a stage, if it left one."""
        url = self.path("records", f"{stage}.json")
        return Record.model_validate(storage.read_json(url)) if storage.exists(url) else None

    def completed(self, stage: str) -> Record:
        """The record of a stage that must have completed."""
        record = self.read(stage)
        if record is None or record.status != "completed":
            state = "has not run" if record is None else f"is '{record.status}': {record.reason}"
            raise StageMissing(
                f"stage '{stage}' of run '{self.run_id}' {state}; run `stanchion run {stage}` first"
            )
        return record

    def records(self) -> list[Record]:
        """All records of the run, in the order the stages started."""
        folder = self.path("records")
        names = [name for name in storage.listing(folder) if name.endswith(".json")]
        found = [Record.model_validate(storage.read_json(storage.join(folder, name))) for name in names]
        return sorted(found, key=lambda record: record.started_at)

    def write(self, record: Record) -> None:
        """Publish a record."""
        storage.write_json(self.path("records", f"{record.stage}.json"), record.model_dump(mode="json"))


@dataclass
class Stage:
    """A stage while it runs; what it fills in becomes its record.

    with open_stage(folder, "pretrain", settings, inputs, ...) as stage:
        if stage.done is None:
            ...
            stage.outputs.append(...)
    return stage.record
    """

    folder: RunFolder
    name: str
    done: Record | None = None
    """The record of an earlier, completed run on the same inputs; then there is nothing to do."""
    outputs: list[Artifact] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    result: Record | None = None

    @property
    def record(self) -> Record:
        """The record, once the stage has ended."""
        record = self.done or self.result
        if record is None:
            raise StageMissing(f"stage '{self.name}' has not ended yet")
        return record


@contextmanager
def open_stage(
    folder: RunFolder,
    name: str,
    *,
    settings: dict[str, Any],
    inputs: list[Artifact],
    profile: str,
    devices: int,
    price_per_device_hour: float,
    currency: str = "USD",
) -> Iterator[Stage]:
    """Run a stage once: finished on the same settings and inputs it is not rerun; ended it leaves a record.

    An exception leaves a record too (`refused` when a gate said no, else `failed`) and goes on to the caller.
    """
    settings_digest = digest({"settings": settings, "inputs": [a.digest for a in inputs]})
    stage = Stage(folder, name, done=_finished(folder, name, settings_digest))
    if stage.done is not None:
        yield stage
        return
    started_at, clock = datetime.now(UTC), time.monotonic()
    status: Literal["completed", "refused", "failed"] = "completed"
    reason: str | None = None
    try:
        yield stage
    except BaseException as error:
        status = "refused" if isinstance(error, GateRefused) else "failed"
        reason = _reason(error)
        if isinstance(error, GateRefused):
            known = {verdict.gate for verdict in stage.verdicts}
            stage.verdicts += [v for v in error.verdicts if v.gate not in known]
        raise
    finally:
        device_seconds = (time.monotonic() - clock) * devices
        stage.result = Record(
            stage=name,
            run_id=folder.run_id,
            status=status,
            reason=reason,
            profile=profile,
            git_commit=git_commit(),
            config_digest=settings_digest,
            config=settings,
            inputs=inputs,
            outputs=stage.outputs,
            metrics=stage.metrics,
            verdicts=stage.verdicts,
            faults=stage.faults,
            device_seconds=device_seconds,
            cost=device_seconds / 3600 * price_per_device_hour,
            currency=currency,
            started_at=started_at,
            ended_at=datetime.now(UTC),
        )
        folder.write(stage.result)


def _reason(error: BaseException) -> str:
    """One line on why a stage ended; a signal is no fault of the stage."""
    if isinstance(error, Exception):
        return f"{type(error).__name__}: {error}"
    return f"interrupted ({type(error).__name__}); the same command continues here"


def _finished(folder: RunFolder, name: str, settings_digest: str) -> Record | None:
    """An earlier record that still holds: completed, same settings and inputs, outputs still there."""
    record = folder.read(name)
    if record is None or record.status != "completed" or record.config_digest != settings_digest:
        return None
    return record if all(storage.exists(artifact.url) for artifact in record.outputs) else None


def digest(value: Any) -> str:
    """Hex SHA-256 of a JSON-serialisable value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def git_commit() -> str | None:
    """The commit this code was checked out at, `+changes` when it was edited since; None outside git."""
    here = Path(__file__).parent
    ask = ["git", "-C", str(here)]
    try:
        commit = subprocess.run(
            [*ask, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*ask, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+changes" if changed else commit
