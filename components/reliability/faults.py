"""Faults on purpose: what a drill breaks inside a real rank, at a step and phase that it names.

STANCHION_FAULT='{"kind": "sleep", "rank": 1, "step": 20, "phase": "data", "once": "/tmp/marker"}'

Without that variable a call costs one cached look-up. `once` names a file that is made when the fault
strikes: a restarted job finds it and is spared.

Most kinds strike a process, in any phase. Those that break something a loop holds (a batch, the engine with
its gradients) have a `POINT` in their file: a place of the loop, named like a phase, that hands it over:

    batch        after the data phase, the batch            collective   before the optimizer, the engine
    gradient     after the backward pass, the engine        replica      after the optimizer, the engine
"""

from __future__ import annotations

import logging
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, Self

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
    """Or the point of the loop, which is that of the kind where it has one."""

    steps: int = Field(default=1, ge=1)
    """In how many steps from `step` on it strikes."""

    seconds: int | None = None
    """How long a fault lasts that can last; each kind has a length of its own."""

    settings: dict[str, Any] = Field(default={})
    """What else the kind's file lets choose."""

    once: str | None = None
    """File that is made when the fault strikes, and that spares whoever finds it."""

    @model_validator(mode="before")
    @classmethod
    def _placed(cls, values: Any) -> Any:
        """A kind that strikes at one point only need not be told which."""
        if not isinstance(values, dict) or "phase" in values or "kind" not in values:
            return values
        point = point_of(values["kind"])
        return {**values, "phase": point} if point else values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """A wrong kind, a wrong place, or a length for a fault that has none: refused before a job starts."""
        _ = self.config
        if (point := point_of(self.kind)) and self.phase != point:
            raise ValueError(
                f"'{self.kind}' strikes at '{point}', not at '{self.phase}'; leave the phase out"
            )
        return self

    @property
    def config(self) -> Config:
        """What the kind's file is given."""
        length = {} if self.seconds is None else {"seconds": self.seconds}
        config: Config = load(KINDS, self.kind).Config.model_validate(self.settings | length)
        return config

    @property
    def environment(self) -> dict[str, str]:
        """What a job's environment must hold for this drill."""
        return {VARIABLE: self.model_dump_json()}


def point_of(kind: str) -> str | None:
    """Where in a loop this kind is handed what it breaks; None when it breaks the process, wherever it is."""
    point: str | None = getattr(load(KINDS, kind), "POINT", None)
    return point


def inject(rank: int, step: int, phase: str, target: Any = None) -> None:
    """Break this rank now, or what it holds, when the drill says so."""
    drill = _drill()
    if drill is None or (rank, phase) != (drill.rank, drill.phase):
        return
    if target is None and point_of(drill.kind):
        return
    if not drill.step <= step < drill.step + drill.steps or not _may_strike(drill, step):
        return
    logger.warning("drill: %s at rank %d, step %d, phase %s", drill.kind, rank, step, phase)
    _strike(drill, target)


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


def _strike(drill: Drill, target: Any) -> None:
    given = (target,) if point_of(drill.kind) else ()
    load(KINDS, drill.kind).strike(drill.config, *given)
