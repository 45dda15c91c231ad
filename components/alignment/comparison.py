"""Two policies on the same prompts: figures with 95 % intervals, by paired bootstrap over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
Ratio = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Numerators and denominators by prompt; the figure is the ratio of their sums."""


@dataclass(frozen=True)
class Outcome:
    """One policy's answer to one prompt."""

    text: str
    parses: bool
    """The whole text is one function, and the model ended by itself."""
    substance: bool
    nodes: int
    """Syntax nodes of the body; 0 when it does not parse."""
    ended: bool
    tokens: int
    reward: float
    drift: float
    """Divergence from the policy before, in nats, summed over the completion."""
    human_nats: float
    """What the human body costs this policy, in nats, its end included."""
    human_tokens: int


def compare(before: Sequence[Outcome], after: Sequence[Outcome], seed: int) -> dict[str, Any]:
    """`before` and `after`: each figure with its interval; `rise`: the paired difference with its own."""
    indices = np.random.default_rng(seed).integers(0, len(before), (RESAMPLES, len(before)))
    found: dict[str, Any] = {"before": {}, "after": {}, "rise": {}}
    then, now = ratios(before), ratios(after)
    for name in then:
        drawn = {"before": _resampled(then[name], indices), "after": _resampled(now[name], indices)}
        drawn["rise"] = drawn["after"] - drawn["before"]
        means = {"before": _mean(then[name]), "after": _mean(now[name])}
        means["rise"] = means["after"] - means["before"]
        for moment, values in drawn.items():
            found[moment][name] = _interval(means[moment], values)
    for moment, outcomes in (("before", before), ("after", after)):
        found[moment]["distinct_share"] = len({o.text for o in outcomes}) / len(outcomes)
    return found


def ratios(outcomes: Sequence[Outcome]) -> dict[str, Ratio]:
    """Every figure as a ratio of sums over prompts."""

    def column(name: str) -> NDArray[np.float64]:
        return np.array([float(getattr(outcome, name)) for outcome in outcomes])

    ones = np.ones(len(outcomes))
    return {
        "parse_share": (column("parses"), ones),
        "substance_share": (column("substance"), ones),
        "reward": (column("reward"), ones),
        "nodes": (column("nodes"), column("parses")),
        "tokens": (column("tokens"), ones),
        "ended_share": (column("ended"), ones),
        "human_nll": (column("human_nats"), column("human_tokens")),
        "kl_per_token": (column("drift"), column("tokens")),
    }


def _mean(ratio: Ratio) -> float:
    return float(ratio[0].sum() / max(1.0, ratio[1].sum()))


def _resampled(ratio: Ratio, indices: NDArray[np.int64]) -> NDArray[np.float64]:
    above, below = (part[indices].sum(axis=1) for part in ratio)
    drawn: NDArray[np.float64] = above / np.maximum(1.0, below)
    return drawn


def _interval(mean: float, drawn: NDArray[np.float64]) -> dict[str, float]:
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {"mean": mean, "low": float(low), "high": float(high)}
