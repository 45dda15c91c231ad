"""A job killed at any moment of a save goes on from the newest whole checkpoint, to the same last bit.

Two real ranks train under ZeRO 2 and save beside training, with a copy on a second tier. They are killed with
SIGKILL at every point that a save names, rank by rank, at every save of the job; and at drawn moments of a
save: one rank, or both. Each time the supervisor starts the job again with the settings that `job_for` gives
it, and the next kill comes at the save after.

Claimed, after each kill: whatever lies under a name that readers look at is whole, on both tiers; the job
goes on from the newest whole checkpoint, as an own count of files and digests finds it, once its gates have
validated it, or anew where there is none yet. And of each run in the end: every step of every attempt has the
loss and the norm of the gradient of the run that nobody disturbed, and the last checkpoint has its tensors,
all to the last bit.

Ranks are forked from a warm process, see `_forked`, or these would be hours of imports; `torn_save` does the
same under torchrun, three times. Not tried: a loss of power, which also loses what was not flushed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from case_studies.proofs import _data, _forked
from components import storage
from components.checkpoints import manifest, names
from components.checkpoints.config import Config as Checkpoints
from components.checkpoints.restore import open_checkpoint
from components.config import Profile, Run, read_profile
from components.errors import CheckpointError
from components.jobs import Job
from components.observability import events
from components.records import Artifact
from components.reliability.faults import Drill
from components.reliability.finding import Attempt
from components.reliability.heartbeat import Beat
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.training.config import Model, Training
from components.training.job import checkpoints_of, job_for

TITLE = "Killed while it saves, a job goes on from the newest whole checkpoint"
ROOT = Path(__file__).parents[2]
STEPS, EVERY = 10, 2
SAVES = tuple(range(EVERY, STEPS + 1, EVERY))
STATES = "deepspeed/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
POINTS = (
    *((0, point) for point in ("copied", "digested", "wrote deepspeed/mp_rank_00_model_states.pt")),
    *((0, point) for point in (f"wrote {STATES.format(0)}", "wrote model.safetensors", "reported")),
    *((0, point) for point in ("gathered", "sealed", "announced", "published", "copied away")),
    *((1, point) for point in ("copied", "digested", f"wrote {STATES.format(1)}", "reported")),
)
"""Rank and point of a save: all that its ranks go through."""
VICTIMS = ((0,), (1,), (0, 1))
"""Of a kill at a drawn moment."""
MODEL = Model(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, context_length=64)


@dataclass
class Kill:
    """One kill: at a point that a save names, else so long after it has begun."""

    step: int
    victims: tuple[int, ...]
    point: str = ""
    delay: float = 0.0
    """As a share of what an undisturbed save takes."""
    struck: bool = False
    saving: bool = False
    """Whether the save was still going on."""

    @property
    def name(self) -> str:
        """For counting."""
        who = "both ranks" if len(self.victims) > 1 else f"rank {self.victims[0]}"
        return f"{who}: {self.point or 'a drawn moment'}"


def prove(*, seed: int = 0, count: int = 200) -> dict[str, Any]:
    """Kill saves until that many were hit; in a process of its own, since only one without threads forks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _data.make_real(folder / "data")
        return _forked.runner(__spec__.name, str(folder), str(seed), str(count))


def run(folder: Path, seed: int, count: int) -> dict[str, Any]:
    """An undisturbed job, then others with a kill at each of their saves, until there are enough."""
    _forked.warm_up()
    draw, trial = random.Random(seed), Trial(folder)
    found, wrong = Counter[str](), list[str]()
    started = time.monotonic()
    while found["while saving"] < count:
        for kills in plan(draw, chains=max(1, -(-(count - found["while saving"]) // len(SAVES)))):
            wrong += trial.chain(f"run-{found['runs']}", kills)
            found["runs"] += 1
            for kill in kills:
                found.update([outcome_of(kill), *([kill.name] if kill.saving else [])])
    seconds = time.monotonic() - started
    kills_made = found["while saving"] + found["after the save"]
    return {
        "holds": not wrong,
        "kills": kills_made,
        "kills_while_saving": found["while saving"],
        "resumed": trial.resumed,
        "began_anew": trial.began_anew,
        "runs": found["runs"],
        "steps_compared": trial.steps_compared,
        "seconds_a_kill": round(seconds / max(kills_made, 1), 2),
        "save_seconds": round(trial.save_seconds, 3),
        "wrong": wrong[:20],
        "by_point": {name: times for name, times in sorted(found.items()) if ":" in name},
        "came_too_late": found["came too late"],
    }


def outcome_of(kill: Kill) -> str:
    """What a kill hit."""
    if not kill.struck:
        return "came too late"
    return "while saving" if kill.saving else "after the save"


def plan(draw: random.Random, *, chains: int) -> list[list[Kill]]:
    """For each chain a kill at every save; at each save every point, as far as that goes, and moments."""
    columns = []
    for step in SAVES:
        drawn = draw.sample(POINTS, min(len(POINTS), -(-chains // 2)))
        named = [Kill(step, (rank,), point) for rank, point in drawn]
        more = [Kill(step, draw.choice(VICTIMS), delay=draw.random()) for _ in range(chains - len(named))]
        columns.append(draw.sample(named + more, chains))
    return [list(row) for row in zip(*columns, strict=True)]


@dataclass
class Trial:
    """Jobs on one data set, compared with one that nobody disturbs."""

    folder: Path
    resumed: int = 0
    began_anew: int = 0
    steps_compared: int = 0
    save_seconds: float = 0.0
    whole: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = Case(self.folder, "undisturbed")
        case.run([])
        self.whole = dict(course(case.job))
        saves = events.read(case.job.folder / "events", "checkpoint", rank=0)
        self.save_seconds = statistics.median(float(event["seconds_to_save"]) for event in saves)
        self.tensors = case.tensors

    def chain(self, name: str, kills: list[Kill]) -> list[str]:
        """One job with these kills; what was wrong with it."""
        case = Case(self.folder, name, save_seconds=self.save_seconds)
        case.run(kills)
        wrong = list(case.wrong)
        for step, figures in course(case.job):
            self.steps_compared += 1
            if figures != self.whole[step]:
                wrong.append(f"step {step} has {figures}, undisturbed {self.whole[step]}")
        if case.tensors != self.tensors:
            wrong.append("the last checkpoint holds other tensors than that of the undisturbed run")
        self.resumed += case.resumed
        self.began_anew += case.began_anew
        return [f"{name}: {one}" for one in wrong]


class Case:
    """One run, with a folder of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        steps: int = STEPS,
        checkpoints: Checkpoints | None = None,
        save_seconds: float = 0.0,
    ) -> None:
        self.shards = Artifact(name="shards", url=str(folder / "data"), digest="")
        self.tier, self.save_seconds = tier_of(folder, name), save_seconds
        self.profile, self.jobs = profile_in(folder / name), folder / f"{name}-job"
        self.run_ = run_with(checkpoints or Checkpoints(copy_to=str(self.tier)), name=name, steps=steps)
        self.wrong: list[str] = []
        self.resumed, self.began_anew = 0, 0
        """Attempts that went on from a checkpoint, and those after a kill before which there was none."""
        self._kills: list[Kill] = []

    def run(self, kills: list[Kill]) -> None:
        """Let the supervisor start the job until it has come to its end."""
        self._kills = kills
        limits = Limits(
            max_restarts=len(kills),
            crash_loop_after=len(kills) + 2,
            backoff_seconds=0.0,
            poll_seconds=0.004,
        )
        supervise(self.attempt, self.profile.launcher, limits, self._look, _forked.launch)
        self._inspect()

    @cached_property
    def checkpoints(self) -> str:
        """Where they are published."""
        return checkpoints_of(self.run_, self.profile)

    @property
    def tensors(self) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Of the last checkpoint: weights, and what each rank holds."""
        last = manifest.read(storage.local_path(next(names.newest_first(self.checkpoints))))
        return last.tensors, last.partitions

    def attempt(self, next_: Attempt) -> Job:
        """Look at what the kill has left, then ask for the next attempt's settings as a flow does."""
        if next_.number:
            self._inspect()
        newest = next((url for url in names.newest_first(self.checkpoints) if is_whole(url)), None)
        asked = job_for(self.run_, self.profile, self.shards, next_)
        self.number, self.job, self._started = next_.number, replace(asked, folder=self.jobs), time.time()
        if self.job.settings["resume_from"] != newest:
            self.wrong.append(f"resumes from {self.job.settings['resume_from']}, newest whole is {newest}")
        elif newest is not None:
            open_checkpoint(newest)  # validated
        kill = self._kill
        if kill is None or not kill.point:
            return self.job
        drill = Drill(
            kind="kill",
            rank=kill.victims[0],
            step=kill.step,
            phase=f"save: {kill.point}",
            once=str(self._marker),
        )
        return replace(self.job, environment=drill.environment)

    @property
    def _marker(self) -> Path:
        """What a drill leaves when it strikes."""
        return self.jobs.with_name(f"{self.jobs.name}-struck-{self.number}")

    @property
    def _kill(self) -> Kill | None:
        return self._kills[self.number] if self.number < len(self._kills) else None

    def _inspect(self) -> None:
        """After an attempt: was it killed where it was to be, and is all that has a name whole?"""
        if (kill := self._kill) is not None and kill.point:
            kill.struck = kill.saving = self._marker.exists()
            if not kill.struck and self._begins_before(kill.step):
                self.wrong.append(f"{kill.name} of step {kill.step} was never reached")
        for folder in (self.checkpoints, str(self.tier)):
            self.wrong += [f"{url} has a name and is not whole" for url in torn(folder)]
        resumed = events.read(self.job.folder / "events", "resume", rank=0)
        if self.job.settings["resume_from"] is None:
            self.began_anew += bool(self.number)
            return
        if not resumed or resumed[-1]["checkpoint"] != self.job.settings["resume_from"]:
            self.wrong.append(f"{self.job.settings['resume_from']} was chosen, and not gone on from")
        self.resumed += 1

    def _look(self, beats: list[Beat]) -> None:
        """Kill at the drawn moment of a save, if this attempt has one."""
        kill = self._kill
        if kill is None or kill.point or kill.struck or not self._has_begun(kill.step):
            return
        time.sleep(kill.delay * self.save_seconds)
        kill.struck = True
        for beat in beats:
            if beat.rank in kill.victims:
                with suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)
        staged = self._staged(kill.step)
        kill.saving = staged.exists() or staged.with_suffix(".reports").exists()

    def _begins_before(self, step: int) -> bool:
        """Whether this attempt has that save ahead of it: the kill before may have come after it."""
        chosen = self.job.settings["resume_from"]
        return chosen is None or names.step_and_attempt(chosen)[0] < step

    def _has_begun(self, step: int) -> bool:
        """Whether this attempt saves that step; what an earlier one has left is swept when it starts."""
        try:
            return self._staged(step).stat().st_ctime > self._started
        except FileNotFoundError:
            return False

    def _staged(self, step: int) -> Path:
        return Path(self.job.settings["scratch"]) / f"step-{step:06d}.partial"


def tier_of(folder: Path, name: str) -> Path:
    """Where a case copies its checkpoints."""
    return folder / f"{name}-tier"


def run_with(checkpoints: Checkpoints, *, name: str, steps: int = STEPS) -> Run:
    """The run that is trained."""
    training = Training(
        steps=steps,
        batch_size=4,
        checkpoint_every=EVERY,
        evaluate_every=EVERY,
        held_out_sequences=8,
        checkpoints=checkpoints,
    )
    return Run(name=name, model=MODEL, training=training)


def profile_in(folder: Path) -> Profile:
    """A laptop's, with all that is made kept in one folder."""
    profile = Profile.model_validate(read_profile("laptop"))
    kept = profile.storage.model_copy(update={"root": str(folder), "scratch": None})
    return profile.model_copy(update={"storage": kept, "processes": 2})


def course(job: Job) -> Iterator[tuple[int, list[float]]]:
    """Every step that rank 0 has done, over all attempts: loss, and norm of the gradient."""
    for event in events.read(job.folder / "events", "step", rank=0):
        yield int(event["step"]), [event["loss"], event["gradient_norm"]]


def is_whole(url: str) -> bool:
    """By the files alone, and nothing of what opens checkpoints: every file is there, with its digest."""
    folder = storage.local_path(url)
    if not (folder / "manifest.json").is_file():
        return False
    listed = json.loads((folder / "manifest.json").read_bytes())["files"]
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return there == {*listed, "manifest.json"} and all(
        storage.sha256_of_file(folder / name) == entry["sha256"] for name, entry in listed.items()
    )


def torn(folder: str) -> list[str]:
    """Names that readers look at, under which something is missing or different."""
    found = []
    for url in names.newest_first(folder):
        try:
            open_checkpoint(url, accept=("committed", "validated"))
        except CheckpointError:
            found.append(url)
    return found


if __name__ == "__main__":
    _forked.answer(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
