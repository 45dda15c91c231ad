"""A machine that is about to be taken says so first: its ranks save where they are, and end.

A notice is a SIGTERM to a rank or to its launcher (cloud agents, Slurm's `--signal`, Kubernetes), or
something that is polled: a file or a metadata address (see `metadata`), or the wish of the supervisor in the
job's folder. What a launcher sends to end its job is none: `stop` leaves a mark first. And a SIGTERM while a
rank of this node is gone comes from torchrun, which ends what is left of a broken job.

Pattern: Checkpoint on Notice
Problem: a machine that is taken costs the steps since the last checkpoint, though it said so half a minute
before; and a rank that saves at once, by itself, waits for others that do not.
Answer: whoever hears the notice raises a flag, the flag rides on a collective that every step has anyway, so
all ranks see it at one and the same step; there they save and end, and the job goes on when there is room.
Trade-off: what is left of a step, an evaluation and a save must fit into the grace period.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from pathlib import Path
from threading import Event, Thread
from typing import Literal

from pydantic import Field

from components import plugins, storage
from components.jobs import ENDING, HANDOVER, NOTICE, Rank
from components.reliability import flight_recorder, heartbeat, stacks
from components.reliability.metadata import Watched, read

FILE_SECONDS = 0.2
"""Between two looks for the supervisor's wish."""
logger = logging.getLogger(__name__)


class Config(plugins.Config):
    """How a job hears that its machine is about to be taken."""

    enabled: bool = True
    """False: SIGTERM ends a rank at once, and nothing is polled."""

    notice: str | None = None
    """A file that appears, or an address that no longer answers 404, when the machine is to be taken."""

    says: str = ""
    """Regular expression that the answer must hold, for addresses that always answer: `TRUE`."""

    headers: dict[str, str] = Field(default={})
    """Sent with the question: `{Metadata-Flavor: Google}`."""

    token_url: str | None = None
    """Address that hands out the token which AWS asks for."""

    poll_seconds: float = Field(default=2.0, gt=0)
    """Between two questions."""

    grace_seconds: float = Field(default=30.0, gt=0)
    """From a notice until the machine is gone: cluster launchers ask for it, and saves are measured by it."""


class Notice(plugins.Config):
    """That a job is to save and end, and why."""

    kind: Literal["preemption", "capacity"] = "preemption"
    why: str
    at: float
    """Unix time at which it was heard."""


class Handover(plugins.Config):
    """What rank 0 leaves instead of a result when all ranks have ended on notice."""

    notice: Notice
    step: int
    """The last one, and that of the checkpoint."""
    checkpoint: str
    at: float
    """Unix time at which the checkpoint was published."""

    @property
    def seconds(self) -> float:
        """From the notice to the checkpoint."""
        return self.at - self.notice.at


def told(config: Config) -> str | None:
    """What the configured place says when it says that this machine will be taken; OSError as from `read`."""
    if not config.enabled or config.notice is None:
        return None
    said = read(config.notice, config.headers, config.token_url)
    if said is None or not re.search(config.says, said):
        return None
    return " ".join(said.split())[:200] or "it is there"


def ask(folder: Path, why: str, kind: Literal["preemption", "capacity"] = "preemption") -> Notice:
    """Leave a notice in a job's folder, for its ranks to find; the first one stands."""
    notice = Notice(kind=kind, why=why, at=time.time())
    try:
        storage.create_bytes(str(folder / NOTICE), notice.model_dump_json().encode())
    except FileExistsError:
        return noticed(folder) or notice
    return notice


def noticed(folder: Path) -> Notice | None:
    """The notice that a job has had."""
    path = folder / NOTICE
    return Notice.model_validate_json(path.read_text()) if path.exists() else None


def handed_over(folder: Path) -> Handover | None:
    """What a job left that ended on notice."""
    path = folder / HANDOVER
    return Handover.model_validate_json(path.read_text()) if path.exists() else None


class Listener:
    """One rank's ear. Made in the main thread, before the rank waits for others for the first time."""

    def __init__(self, rank: Rank, config: Config) -> None:
        self.rank, self.config = rank, config
        self._heard = Event()
        if config.enabled:
            self._take_signals()
            if int(os.environ.get("LOCAL_RANK", "0")) == 0:  # a place speaks of a machine
                Thread(target=self._poll, name="preemption", daemon=True).start()

    def heard(self) -> bool:
        """Whether this rank knows of a notice; others may, so ranks that act on it must agree first."""
        return self._heard.is_set()

    def hand_over(self, step: int, checkpoint: str) -> None:
        """Say where the job can go on; rank 0 alone leaves it."""
        if self.rank.rank == 0:
            notice = noticed(self.rank.folder) or Notice(why="heard on another machine", at=time.time())
            left = Handover(notice=notice, step=step, checkpoint=checkpoint, at=time.time())
            storage.write_text(str(self.rank.folder / HANDOVER), left.model_dump_json())

    def _take_signals(self) -> None:
        """From the thread that already waits for SIGTERM where there is one, else in a handler."""
        if flight_recorder.ask_first(self._is_notice):
            return
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        if not self._is_notice():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _is_notice(self) -> bool:
        """Whether a SIGTERM that has just come is one; then it is heard."""
        if (self.rank.folder / ENDING).exists() or _a_neighbour_is_gone(self.rank):
            return False
        self._hear(f"rank {self.rank.rank} was sent SIGTERM")
        return True

    def _hear(self, why: str) -> None:
        notice = ask(self.rank.folder, why)
        logger.warning("rank %d: %s; saves at the next step and ends", self.rank.rank, notice.why)
        self._heard.set()

    def _poll(self) -> None:
        place = Watched(lambda: told(self.config), self.config.poll_seconds)
        asked = float("-inf")
        while not self._heard.wait(FILE_SECONDS):
            if noticed(self.rank.folder) is not None:
                self._heard.set()
            elif self.config.notice and time.monotonic() - asked >= self.config.poll_seconds:
                asked = time.monotonic()
                if (said := place.now()) is not None:
                    self._hear(f"{self.config.notice} says: {said}")


def _a_neighbour_is_gone(rank: Rank) -> bool:
    """Whether a rank of this node that has beaten is no more."""
    first = rank.rank - int(os.environ.get("LOCAL_RANK", "0"))
    node = range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    beats = [beat for beat in heartbeat.read(rank.folder / "beats") if beat.rank in node]
    return any(not stacks.belongs(beat.pid, rank.folder) for beat in beats)
