"""One drill on real ranks: a fault at a place, what the supervisor made of it, how long each part took."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from case_studies.proofs import _forked
from case_studies.proofs.killed_saves import MODEL, profile_in
from components import storage
from components.config import Run
from components.errors import JobError
from components.jobs import Job
from components.observability import events
from components.plugins import names
from components.records import Artifact
from components.reliability.config import DETECTORS, Reliability
from components.reliability.faults import Drill, struck_at
from components.reliability.finding import Attempt
from components.reliability.heartbeat import Beat
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.training.config import Training
from components.training.job import job_for

SAVED_EVERY = 5
SEQUENCES = 12
"""In a batch: they divide over 2, 3 and 4 ranks."""


@dataclass(frozen=True)
class Place:
    """Which fault strikes where."""

    kind: str
    ranks: int
    rank: int
    step: int
    phase: str
    steps: int
    """In how many steps running."""
    more: int
    """Steps that the job has after the strike."""
    settings: dict[str, Any]
    """What else the kind lets choose."""


def watched() -> Reliability:
    """As shipped, with every detector; only the pause before a restart is none."""
    found = Reliability.model_validate({"detectors": {name: {} for name in names(DETECTORS)}})
    return found.model_copy(update={"limits": found.limits.model_copy(update={"backoff_seconds": 0.0})})


class Trial:
    """One job, with a fault or without."""

    def __init__(self, folder: Path, name: str, *, ranks: int, steps: int, saved_every: int) -> None:
        training = Training(
            steps=steps,
            batch_size=SEQUENCES,
            checkpoint_every=saved_every,
            evaluate_every=saved_every,
            held_out_sequences=8,
            compare_replicas_every=1,
        )
        self.folder, self.run = folder / name, Run(name=name, model=MODEL, training=training)
        self.shards = Artifact(name="shards", url=str(folder / "data"), digest="")
        self.profile = profile_in(self.folder).model_copy(update={"processes": ranks})
        self.marker, self.looked = self.folder / "struck", [0.0]
        self.drill: Drill | None = None
        self.jobs: list[Job] = []

    def supervised(self) -> Outcome:
        """Run it to its end."""
        chosen = watched()
        return supervise(
            self._attempt,
            self.profile.launcher,
            chosen.limits,
            self._look,
            _forked.launch,
            chosen.detectors_of,
        )

    def _attempt(self, next_: Attempt) -> Job:
        asked = job_for(self.run, self.profile, self.shards, next_)
        environment = self.drill.environment if self.drill else {}
        self.jobs.append(replace(asked, environment={**asked.environment, **environment}))
        self.looked.append(0.0)
        return self.jobs[-1]

    def _look(self, _: list[Beat]) -> None:
        """The supervisor judges right after this; the last time it did in an attempt is when it knew."""
        self.looked[-1] = time.time()

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What rank 0 wrote, over all attempts."""
        return events.read(self.jobs[-1].folder / "events", "step", rank=0)


def drilled(folder: Path, name: str, place: Place) -> dict[str, Any]:
    """One line of the journal."""
    total = place.step + place.more
    trial = Trial(folder, name, ranks=place.ranks, steps=total, saved_every=SAVED_EVERY)
    trial.drill = Drill(
        kind=place.kind,
        rank=place.rank,
        step=place.step,
        phase=place.phase,
        steps=place.steps,
        settings=place.settings,
        once=str(trial.marker),
    )
    trial.folder.mkdir(parents=True)
    started = time.monotonic()
    try:
        outcome, error = trial.supervised(), ""
    except JobError as failed:
        return {**asdict(place), "error": str(failed)[-2000:], "detected": False, "recovered": False}
    struck = struck_at(trial.marker)
    if struck is None:
        raise JobError(f"{place} never struck")
    return {
        **asdict(place),
        **_found(trial, outcome, struck),
        "error": error,
        "restarts": outcome.restarts,
        "last_step": outcome.result["step"],
        "seconds": round(time.monotonic() - started, 1),
        "recovered": outcome.result["step"] == total and all(one.recovered for one in outcome.faults),
    }


def _found(trial: Trial, outcome: Outcome, struck: float) -> dict[str, Any]:
    """The first finding after the strike, beside those before it, which are false alarms."""
    drill, faults = trial.drill, outcome.faults
    assert drill is not None, "it has struck"
    early = [fault for fault in faults if fault.at.timestamp() < struck]
    fault = next((fault for fault in faults if fault.at.timestamp() >= struck), None)
    before = [float(event["at"]) for event in trial.steps if event["at"] < struck]
    median = statistics.median(b - a for a, b in pairwise(before[1:]))
    found = {"median_step_seconds": round(median, 3), "false_alarms": [one.detail for one in early]}
    if fault is None:
        return {**found, "detected": False}
    at = trial.looked[1] if _ends_by_a_look(outcome) else fault.at.timestamp()
    known = {
        "detected": True,
        "finding": fault.kind,
        "detail": fault.detail[:300],
        "culprit": fault.rank,
        "right": fault.rank == drill.rank,
        "seconds_to_detect": round(at - struck, 3),
        "steps_to_detect": max(0, (fault.step or 0) - drill.step),
        "seconds_to_recover": fault.seconds_to_recover and round(fault.seconds_to_recover, 3),
    }
    bundle = _bundle(Path(outcome.incidents[0]), at) if outcome.incidents else {}
    return {**found, **known, **bundle}


def _ends_by_a_look(outcome: Outcome) -> bool:
    """Whether the supervisor ended the job: it knew at its last look, and then asked all ranks for stacks.

    A job that ends by itself is known by that, and only what its ranks have left is read.
    """
    return any((Path(bundle) / "stacks").exists() for bundle in outcome.incidents[:1])


def _bundle(folder: Path, known_at: float) -> dict[str, Any]:
    """What it holds, when it was complete, and how sure the name is."""
    finding = storage.read_json(str(folder / "finding.json"))
    return {
        "confidence": finding["confidence"],
        "found_in": finding["phase"],
        "bundle_seconds": round((folder / "summary.md").stat().st_mtime - known_at, 3),
        "stacks": len(list(folder.glob("stacks/*.txt"))),
        "records_of_collectives": len(list(folder.glob("flight/*.jsonl"))),
        "files": sum(path.is_file() for path in folder.rglob("*")),
    }


def healthy(folder: Path, name: str, *, steps: int, saves: int, busy: int) -> dict[str, Any]:
    """A job that nothing strikes, with so many processes beside it that take a core each."""
    trial = Trial(folder, name, ranks=2, steps=steps, saved_every=max(1, steps // saves))
    with burning(busy):
        outcome = trial.supervised()
    times = [float(event["at"]) for event in trial.steps]
    gaps = sorted(b - a for a, b in pairwise(times))
    saved = events.read(trial.jobs[-1].folder / "events", "checkpoint", rank=0)
    return {
        "steps": outcome.result["step"],
        "checkpoints": len(saved),
        "busy_processes_beside": busy,
        "median_step_seconds": round(statistics.median(gaps), 3),
        "longest_gap_seconds": round(gaps[-1], 3),
        "alarms": [f"{fault.kind}: {fault.detail}"[:300] for fault in outcome.faults],
        "restarts": outcome.restarts,
    }


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """Others on the same machine, each of which would like a core for itself."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
