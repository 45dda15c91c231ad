"""The policy does on held-out prompts what it was paid for, by more than chance explains.

When to use: after reinforcement learning, always together with `policy_did_not_cheat`: a reward that rose
says nothing about how. What it costs: nothing beyond the evaluation of both policies on the same prompts.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from components import plugins
from components.errors import DataError
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """How much is an improvement."""

    figure: str = "parse_share"
    """Which of the compared figures must have risen."""

    margin: float = Field(default=0.03, ge=0)
    """The whole 95 % interval of the rise must lie above this."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare the low end of the paired difference with the margin."""
    rise = _rise(subject.figures, config.figure)
    passed = rise["low"] > config.margin
    return Verdict(
        gate="reward_improved",
        passed=passed,
        reason=f"{config.figure} rose by {rise['mean']:.3f}, 95 % interval {rise['low']:.3f} to "
        f"{rise['high']:.3f}, which {'lies' if passed else 'does not lie'} above {config.margin}",
        figures={"rise": rise["mean"], "low": rise["low"], "high": rise["high"], "margin": config.margin},
    )


def _rise(figures: Any, name: str) -> dict[str, float]:
    compared = figures.get("rise", {})
    if name not in compared:
        known = ", ".join(sorted(compared)) or "nothing"
        raise DataError(f"the policies were not compared by {name} but by {known}; evaluate both first")
    rise: dict[str, float] = compared[name]
    return rise
