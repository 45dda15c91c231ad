"""A job: one torchrun target, its settings and its folder; and what a rank sees of it.

The folder is the contract between the launcher outside and the ranks inside:

    settings.json   what the target reads          logs/     stdout and stderr, one file a rank
    result.json     what rank 0 leaves at the end  events/   one JSON line a step and rank
    flight/         the last collectives            beats/    step and phase of each rank, live
                    of each rank, when asked for    ending    that its launcher ends it
    notice.json     that it is to save and end      handover.json   where it did, instead of a result
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from components import storage
from components.observability.events import EventLog
from components.reliability.heartbeat import Heartbeat

FOLDER_VARIABLE = "STANCHION_JOB_FOLDER"
NOTICE, HANDOVER, ENDING = "notice.json", "handover.json", "ending"


@dataclass(frozen=True)
class Job:
    """What a launcher starts: `processes` ranks of `python -m target`."""

    name: str
    target: str
    """Module to run, for example `components.training.pretrain`."""
    settings: Mapping[str, Any]
    """What the target reads: JSON only."""
    folder: Path
    processes: int
    threads_per_process: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: int = 30
    """From a notice until a cluster kills what is left: time to save."""

    def prepare(self) -> None:
        """Make the folder and write the settings; an old result or beat is not mistaken for a new one."""
        for name in ("logs", "events", "beats"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("result.json", NOTICE, HANDOVER, ENDING):
            (self.folder / name).unlink(missing_ok=True)
        for left in (*(self.folder / "beats").iterdir(), *(self.folder / "flight").glob("*")):
            left.unlink()
        storage.write_json(str(self.folder / "settings.json"), dict(self.settings))

    def result(self) -> dict[str, Any]:
        """What rank 0 left."""
        result: dict[str, Any] = storage.read_json(str(self.folder / "result.json"))
        return result


class Handle(Protocol):
    """A started job, as every launcher gives it back."""

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""

    def stop(self) -> None:
        """End every process of the job, and return only when none is left."""

    def survivors(self) -> list[int]:
        """Process ids of the job that are still alive."""

    def log_tail(self, lines: int = 20) -> str:
        """The end of the log of the rank that failed first, else of rank 0."""


@dataclass(frozen=True)
class Rank:
    """What a target knows: who it is, what to do, where to write."""

    rank: int
    world_size: int
    folder: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the flow asked for."""
        settings: dict[str, Any] = storage.read_json(str(self.folder / "settings.json"))
        return settings

    @cached_property
    def events(self) -> EventLog:
        """Where this rank writes one line a step."""
        return EventLog(self.folder / "events", self.rank)

    @cached_property
    def heartbeat(self) -> Heartbeat:
        """Where this rank says which step and phase it is in."""
        return Heartbeat(self.folder / "beats", self.rank)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Rank 0 leaves the result; other ranks leave nothing."""
        if self.rank == 0:
            storage.write_json(str(self.folder / "result.json"), dict(result))


def this_rank() -> Rank:
    """The rank that this process is, from the environment the launcher set."""
    return Rank(
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        folder=Path(os.environ[FOLDER_VARIABLE]),
    )
