"""A fault that strikes a running job from outside, or the environment that makes it strike from inside.

Only a signal can be sent to a process that runs already; every other kind is a drill that a job starts with.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from components.errors import ConfigError
from components.plugins import load, names
from components.reliability import heartbeat, stacks
from components.reliability.faults import KINDS
from components.reliability.heartbeat import Beat

POLL_SECONDS = 0.02


def kinds() -> dict[str, str]:
    """What each fault is, in the first line of its file."""
    return {kind: (load(KINDS, kind).__doc__ or "").splitlines()[0] for kind in names(KINDS)}


def signal_of(kind: str) -> signal.Signals | None:
    """What does the same from outside; None when nothing does."""
    found: signal.Signals | None = getattr(load(KINDS, kind), "LIVE", None)
    return found


def strike(kind: str, folder: Path, *, rank: int, after_step: int = 0, wait_seconds: float = 600.0) -> Beat:
    """Send the fault's signal to a rank once it is past `after_step`; where it was then.

    ConfigError when the kind has no signal, the job no such rank, or its process is not of that job.
    """
    what = signal_of(kind)
    if what is None:
        live = ", ".join(name for name in names(KINDS) if signal_of(name))
        raise ConfigError(f"'{kind}' cannot strike from outside; use {live}, or start the job with a drill")
    deadline = time.monotonic() + wait_seconds
    while (beat := _beat(folder, rank)).step <= after_step and after_step:
        if time.monotonic() > deadline:
            raise ConfigError(
                f"rank {rank} is at step {beat.step} after {wait_seconds:g} s; give --after a lower step"
            )
        time.sleep(POLL_SECONDS)
    os.kill(beat.pid, what)
    return beat


def _beat(folder: Path, rank: int) -> Beat:
    """The last beat of a rank whose process is alive and of this job."""
    beats = {beat.rank: beat for beat in heartbeat.read(folder / "beats")}
    if not beats:
        raise ConfigError(f"{folder}/beats holds no beat; give the folder of a job that runs")
    if rank not in beats:
        raise ConfigError(f"no rank {rank} in {folder}; choose one of {', '.join(map(str, sorted(beats)))}")
    if not stacks.belongs(beats[rank].pid, folder):
        raise ConfigError(
            f"process {beats[rank].pid} of rank {rank} has ended, runs elsewhere or is not of {folder}; "
            "give the folder of a job that runs on this machine"
        )
    return beats[rank]
