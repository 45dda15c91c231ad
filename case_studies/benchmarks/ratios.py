"""What may be said of figures from a machine that others use too: a ratio within a round, then the median.

Two loaders that take turns see the same neighbours in the same minute, so a busy spell cancels. CPU-seconds
are the figure to trust; wall seconds are kept beside them.
"""

from __future__ import annotations

from statistics import median
from typing import Any, NamedTuple

Epochs = list[dict[str, Any]]


class Bar(NamedTuple):
    """A claim: one loader over another, at least so much."""

    name: str
    over: str
    under: str
    least: float


BARS = (
    Bar("verified reading over litdata, which checks nothing", "stanchion", "litdata", 1.0),
    Bar("verified reading over webdataset", "stanchion", "webdataset", 5.0),
)


def rate(epoch: dict[str, Any], seconds: str = "cpu") -> float:
    """Samples a second."""
    return float(epoch["samples"] / epoch[seconds])


def middle(epochs: Epochs, seconds: str = "cpu") -> float:
    """Of a few epochs."""
    return median(rate(epoch, seconds) for epoch in epochs)


def ratio(over: Epochs, under: Epochs, seconds: str = "cpu") -> float:
    """The median of the ratios of each round."""
    return median(rate(a, seconds) / rate(b, seconds) for a, b in zip(over, under, strict=True))


def judged(loaders: dict[str, Any]) -> list[dict[str, Any]]:
    """Every bar, with what was measured; one that could not be measured does not hold, and says so."""
    return [_judged(bar, loaders) for bar in BARS]


def _judged(bar: Bar, loaders: dict[str, Any]) -> dict[str, Any]:
    sides = [loaders.get(name, {}).get("epochs", {}).get("0") for name in (bar.over, bar.under)]
    measured = round(ratio(sides[0], sides[1]), 3) if all(sides) else None
    return {**bar._asdict(), "measured": measured, "holds": measured is not None and measured >= bar.least}
