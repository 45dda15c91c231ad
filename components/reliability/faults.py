"""Faults on purpose: what a drill breaks inside a real rank, at a step and phase that it names.

STANCHION_FAULT='{"kind": "sleep", "rank": 1, "step": 20, "phase": "data", "once": "/tmp/marker"}'

Without that variable a call costs one cached look-up. `once` names a file that is made when the fault
strikes: a restarted job finds it and is spared.
"""

from __future__ import annotations

import logging
import os
import time
from functools import cache
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from components.plugins import Config, load

VARIABLE = "STANCHION_FAULT"
KINDS = "components.reliability.fault_kinds"
_made: set[str] = set()

logger = logging.getLogger(__name__)


class Drill(Config):
    """One fault: what, where and when."""

    kind: str
    """A file in `components/reliability/fault_kinds/`."""

    rank: int = 0
    step: int = 1
    phase: str = "data"

    steps: int = Field(default=1, ge=1)
    """In how many steps from `step` on it strikes."""

    seconds: int | None = None
    """How long a fault lasts that can last; each kind has a length of its own."""

    once: str | None = None
    """File that is made when the fault strikes, and that spares whoever finds it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """A wrong kind, or a length for a fault that has none, is refused before a job starts."""
        _ = self.config
        return self

    @property
    def config(self) -> Config:
        """What the kind's file is given."""
        chosen = {} if self.seconds is None else {"seconds": self.seconds}
        config: Config = load(KINDS, self.kind).Config.model_validate(chosen)
        return config

    @property
    def environment(self) -> dict[str, str]:
        """What a job's environment must hold for this drill."""
        return {VARIABLE: self.model_dump_json()}


def inject(rank: int, step: int, phase: str) -> None:
    """Break this rank now, when the drill says so."""
    drill = _drill()
    if drill is None or (rank, phase) != (drill.rank, drill.phase):
        return
    if not drill.step <= step < drill.step + drill.steps or not _may_strike(drill, step):
        return
    logger.warning("drill: %s at rank %d, step %d, phase %s", drill.kind, rank, step, phase)
    _strike(drill)


def struck_at(marker: Path) -> float | None:
    """Unix time at which a drill with this marker struck; None when it has not."""
    return float(marker.read_text()) if marker.exists() and marker.stat().st_size else None


@cache
def _drill() -> Drill | None:
    text = os.environ.get(VARIABLE)
    return Drill.model_validate_json(text) if text else None


def _may_strike(drill: Drill, step: int) -> bool:
    """Whether this process may be struck: it made the marker, now or in an earlier step."""
    if drill.once is None or (step > drill.step and drill.once in _made):
        return True
    try:
        with Path(drill.once).open("x") as file:
            file.write(repr(time.time()))
    except FileExistsError:
        return False
    _made.add(drill.once)
    return True


def _strike(drill: Drill) -> None:
    load(KINDS, drill.kind).strike(drill.config)
