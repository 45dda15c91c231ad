"""Weights and the optimizer's moments are about as large as in the validated checkpoint before.

Idea: a blow-up, a tensor that was set to zero or a moment that was lost is finite, intact, and often costs
nothing in the first loss after a resume. Norms show it. When to use: always; where there is no checkpoint
before, the norms must still be finite, and are kept for the next. What it costs: one read of weights and
moments, about a second for each gigabyte; of the checkpoint before, only the figures of its verdict are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from pydantic import Field

from components import plugins
from components.checkpoints import manifest, norms
from components.judgement import Subject
from components.records import Verdict

NAME = "norms_within_bounds"
WEIGHT, MOMENT = "weight ", "moment "
"""How the figures of single tensors begin; the rest is the tensor's name."""


class Config(plugins.Config):
    """By which factor a norm may have grown or shrunk."""

    weights: float = Field(default=4.0, gt=1)
    """All weights as one vector: an honest small run grew 2.1-fold from its step 50 to 500."""

    tensor: float = Field(default=10.0, gt=1)
    """One weight tensor; some move faster than the whole: there a query projection grew 3.6-fold."""

    moments: float = Field(default=100.0, gt=1)
    """Each moment, whole and by group; the second follows the gradient's square, which falls fast."""

    quiet: float = Field(default=0.01, ge=0)
    """A moment with a smaller norm counts as this one, unless it is zero: where all rewards are alike there
    is no gradient. And with gradients clipped to norm 1 no honest moment exceeds `moments` times this."""


def check(subject: Subject, config: Config) -> Verdict:
    """Measure, then compare with what the gate measured the last time."""
    figures = _measured(subject)
    before: Mapping[str, float] = subject.previous.figures(NAME) if subject.previous else {}
    broken = list(_not_finite(figures)) or list(_out_of_bounds(figures, before, config))
    said = f"weights {figures['weights']:.4g}, " + ", ".join(
        f"{kind} {figures[kind]:.4g}" for kind in norms.MOMENTS if kind in figures
    )
    if broken:
        more = f", and {len(broken) - 1} more" if len(broken) > 1 else ""
        reason = broken[0] + more
    elif before and subject.previous:
        reason = f"{said}: all within bounds of {subject.previous.name}'s"
    else:
        reason = f"{said}; no norms of a validated checkpoint before to compare with"
    return Verdict(gate=NAME, passed=not broken, reason=reason, figures=dict(figures))


def _measured(subject: Subject) -> dict[str, float]:
    """Norms by the names that the figures have."""
    ranks = len(manifest.read(subject.path).partitions)
    weights = norms.of_weights(subject.path / "model.safetensors")
    moments = norms.of_moments(subject.path, ranks) if ranks else {}
    whole = {"weights": norms.total(weights)}
    for kind in norms.MOMENTS:
        if mine := {name: norm for name, norm in moments.items() if name.rpartition(".")[0] == kind}:
            whole[kind] = norms.total(mine)
    single = {WEIGHT + name: norm for name, norm in weights.items()}
    return whole | single | {MOMENT + name: norm for name, norm in moments.items()}


def _not_finite(figures: Mapping[str, float]) -> Iterator[str]:
    for name, norm in _named_first(figures):
        if not math.isfinite(norm):
            yield f"the norm of {name} is {norm}"


def _out_of_bounds(
    figures: Mapping[str, float], before: Mapping[str, float], config: Config
) -> Iterator[str]:
    for name, norm in _named_first(figures):
        was = before.get(name)
        if not was:  # what was zero, or was not there, may be anything
            continue
        allowed = _allowed(name, config)
        low, high = sorted((norm, was))
        if low and not _is_weight(name):
            low, high = max(low, config.quiet), max(high, config.quiet)
        factor = high / low if low else math.inf
        if factor > allowed:
            yield (
                f"the norm of {name} is {norm:.4g}, it was {was:.4g}: "
                f"a factor of {factor:.4g}, {allowed:g} is allowed"
            )


def _named_first(figures: Mapping[str, float]) -> list[tuple[str, float]]:
    """Single tensors before totals: the reason should name one."""
    return sorted(figures.items(), key=lambda item: not item[0].startswith((WEIGHT, MOMENT)))


def _is_weight(name: str) -> bool:
    return name == "weights" or name.startswith(WEIGHT)


def _allowed(name: str, config: Config) -> float:
    if name == "weights":
        return config.weights
    return config.tensor if name.startswith(WEIGHT) else config.moments
