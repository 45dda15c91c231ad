"""Which step and phase each rank is in, written so cheaply that it can be written at every phase.

Pattern: Heartbeat by Progress
Problem: a rank that hangs is still a live process, so liveness checks stay green while nothing moves.
Answer: the heartbeat is the step and phase themselves; a job is healthy when they change, not when it exists.
Trade-off: every loop must say where it is, and phases need limits of their own (a checkpoint is not a stall).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

PHASES = (
    "start",
    "rollout",
    "data",
    "forward",
    "backward",
    "snapshot",
    "optimizer",
    "evaluate",
    "flush",
    "checkpoint",
    "done",
)
"""In the order in which a step goes through them: of two ranks at one step, the earlier phase is behind.
`snapshot`: the optimizer waits for a checkpoint's copy in memory; `flush`: for the writer of one."""
LAYOUT = struct.Struct("<qqqd")  # process id, step, phase, Unix time


@dataclass(frozen=True)
class Beat:
    """Where a rank last said it was."""

    rank: int
    pid: int
    step: int
    phase: str
    at: float
    """Unix time in seconds."""


class Heartbeat:
    """The writing side, one file of 32 bytes a rank; a beat is one store to mapped memory."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank-{rank:05d}"
        path.write_bytes(LAYOUT.pack(os.getpid(), 0, 0, time.time()))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), LAYOUT.size)

    def beat(self, step: int, phase: str) -> None:
        """Say that this rank has entered `phase` of `step`."""
        self._map[:] = LAYOUT.pack(os.getpid(), step, PHASES.index(phase), time.time())


def read(folder: Path) -> list[Beat]:
    """The last beat of every rank that has ever beaten, by rank."""
    found = (_read(path) for path in sorted(folder.glob("rank-*")))
    return [beat for beat in found if beat is not None]


def _read(path: Path) -> Beat | None:
    """The beat in a file; None while a rank is just making it, or a new attempt has just removed it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != LAYOUT.size:
        return None
    pid, step, phase, at = LAYOUT.unpack(content)
    return Beat(int(path.name.removeprefix("rank-")), pid, step, PHASES[phase], at)
