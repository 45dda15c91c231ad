"""Whether a step's gradient may reach the optimizer: all ranks decide it alike, from two norms of each.

A rank tells the norm of its own gradient, before ranks share theirs, and of what its optimizer is about to be
given (a slice under ZeRO 1 to 3). They travel with the loss, in the one collective that a step has for it.
What is finite and not out of all proportion passes: bits flipped low in a number are for `replicas`.

Pattern: Gradient Guard
Problem: one gradient that is not a number, or a thousand times too large, is in every weight a step later,
and clipping only makes a wrong direction shorter.
Answer: look before the optimizer does; all ranks leave the step out and name the rank; a few in a row end it.
Trade-off: norms are computed twice (`make bench-telemetry` measures it), and what a skipped batch would have
taught is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot, isfinite
from statistics import fmean, median
from typing import NamedTuple

from pydantic import Field

from components import plugins

ROUNDING = 1.1
"""A mean is never longer than the mean of the lengths; bf16 rounds by less than this."""


class Config(plugins.Config):
    """When a gradient is refused, and how long a job lives with it."""

    factor: float = Field(default=100.0, gt=1)
    """Times the median of the norms before. A healthy run with 2 steps of warm-up has reached 31 once, the
    demo's 1,000 steps stay below 6. An exponent bit that flips is far beyond."""
    window: int = Field(default=64, ge=8)
    """Norms before whose median counts."""
    least: int = Field(default=16, ge=2)
    """Of them, before which nothing finite is refused for its size."""
    in_a_row: int = Field(default=3, ge=0)
    """Steps left out one after another; with one more the attempt ends."""


class Norms(NamedTuple):
    """Of one rank."""

    own: float
    """Of the gradient of its own batch."""
    given: float
    """Of what its optimizer is about to be given."""


@dataclass(frozen=True)
class Refusal:
    """Why a step is left out."""

    reason: str
    rank: int | None
    """Whose fault it is; None where all ranks are alike, as after a bad batch."""
    figures: dict[str, float | list[float]] = field(default_factory=dict)


class Guard:
    """Remembers the norms that passed. `state` goes into checkpoints: a resumed job decides as the first."""

    def __init__(self, config: Config, seen: Iterable[float] = (), skipped: int = 0) -> None:
        self.config, self.skipped, self.norm = config, skipped, 0.0
        self.seen = deque(seen, maxlen=config.window)

    @property
    def state(self) -> dict[str, list[float] | int]:
        """What `Guard(config, **state)` goes on with: JSON."""
        return {"seen": list(self.seen), "skipped": self.skipped}

    @property
    def at_its_end(self) -> bool:
        """More steps in a row were left out than a job should live with."""
        return self.skipped > self.config.in_a_row

    def judge(self, ranks: Sequence[Norms], *, sharded: bool) -> Refusal | None:
        """None when the step may be taken. `sharded`: each rank is given a slice, not the same whole."""
        given = [norms.given for norms in ranks]
        whole = self.norm = hypot(*given) if sharded else max(given)
        refusal = _not_finite(ranks) or self._too_large(ranks, whole) or (None if sharded else _unlike(given))
        if refusal is None:
            self.seen.append(whole)
            self.skipped = 0
        else:
            self.skipped += 1
        return refusal

    def _too_large(self, ranks: Sequence[Norms], whole: float) -> Refusal | None:
        own, given = [norms.own for norms in ranks], [norms.given for norms in ranks]
        figures: dict[str, float | list[float]] = {"norm": whole, "own": own, "given": given}
        if whole > ROUNDING * fmean(own):
            reason = f"norm {whole:.3g} came of gradients whose mean is {fmean(own):.3g} at most"
            return Refusal(f"{reason}: damaged on the way", given.index(max(given)), figures)
        if len(self.seen) < self.config.least or whole <= self.config.factor * (usual := median(self.seen)):
            return None
        out = [rank for rank, norm in enumerate(own) if norm > self.config.factor * usual]
        alone = out[0] if len(out) == 1 < len(ranks) else None
        return Refusal(f"norm {whole:.3g}, the median is {usual:.3g}", alone, {**figures, "usual": usual})


def _not_finite(ranks: Sequence[Norms]) -> Refusal | None:
    """Own gradients first: a NaN among them is in what others are given as well."""
    own = [rank for rank, norms in enumerate(ranks) if not isfinite(norms.own)]
    given = [rank for rank, norms in enumerate(ranks) if not isfinite(norms.given)]
    if not own and not given:
        return None
    where = "the gradient of its batch" if own else "what came of all gradients"
    bad = own or given
    alone = bad[0] if len(bad) == 1 else None
    return Refusal(f"not finite in {where}", alone, {"ranks": [float(rank) for rank in bad]})


def _unlike(given: Sequence[float]) -> Refusal | None:
    """Without ZeRO every rank is given the same, to the last bit."""
    if len(set(given)) == 1:
        return None
    rarest = min(given, key=given.count)
    rank = given.index(rarest) if len(given) > 2 and given.count(rarest) == 1 else None
    return Refusal("ranks are given different gradients", rank, {"given": list(given)})
