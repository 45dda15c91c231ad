"""Faults on purpose: what a drill breaks inside a real rank, at a step and phase that it names.

STANCHION_FAULT='{"kind": "sleep", "rank": 1, "step": 20, "phase": "data", "once": "/tmp/marker"}'

Without that variable a call costs one cached look-up. `once` names a file that is made when the fault
strikes: a restarted job finds it and is spared.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from functools import cache
from pathlib import Path
from typing import Literal

from components.plugins import Config

VARIABLE = "STANCHION_FAULT"

logger = logging.getLogger(__name__)


class Drill(Config):
    """One fault: what, where and when."""

    kind: Literal["sleep", "kill", "stop", "exit", "busy_gil"]
    """`sleep` blocks a thread, `busy_gil` all; `kill` is SIGKILL, `stop` SIGSTOP, `exit` an error."""

    rank: int = 0
    step: int = 1
    phase: str = "data"

    seconds: int = 3600
    """How long `sleep` and `busy_gil` last."""

    once: str | None = None
    """File that is made when the fault strikes, and that spares whoever finds it."""

    @property
    def environment(self) -> dict[str, str]:
        """What a job's environment must hold for this drill."""
        return {VARIABLE: self.model_dump_json()}


def inject(rank: int, step: int, phase: str) -> None:
    """Break this rank now, when the drill says so."""
    drill = _drill()
    if drill is None or (rank, step, phase) != (drill.rank, drill.step, drill.phase):
        return
    if drill.once is None or _first(Path(drill.once)):
        logger.warning("drill: %s at rank %d, step %d, phase %s", drill.kind, rank, step, phase)
        _strike(drill)


def struck_at(marker: Path) -> float | None:
    """Unix time at which a drill with this marker struck; None when it has not."""
    return float(marker.read_text()) if marker.exists() and marker.stat().st_size else None


@cache
def _drill() -> Drill | None:
    text = os.environ.get(VARIABLE)
    return Drill.model_validate_json(text) if text else None


def _first(marker: Path) -> bool:
    try:
        with marker.open("x") as file:
            file.write(repr(time.time()))
    except FileExistsError:
        return False
    return True


def _strike(drill: Drill) -> None:
    if drill.kind == "sleep":
        time.sleep(drill.seconds)
    elif drill.kind == "busy_gil":
        ctypes.PyDLL(None).sleep(drill.seconds)  # a C call that keeps the interpreter lock
    elif drill.kind == "exit":
        sys.exit("drill: this rank was told to end with an error")
    else:
        os.kill(os.getpid(), signal.SIGKILL if drill.kind == "kill" else signal.SIGSTOP)
