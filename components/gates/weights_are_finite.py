"""No weight is NaN or infinite.

When to use: always; a diverged run writes perfectly intact files. What it costs: one read of the weights, in
plain numpy, under a second for each gigabyte.
"""

from __future__ import annotations

from components import plugins
from components.checkpoints import weights
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """Nothing to set."""


def check(subject: Subject, config: Config) -> Verdict:
    """Look at every element of model.safetensors."""
    found = list(weights.read(subject.path / "model.safetensors"))
    not_finite = {weight.name: bad for weight in found if (bad := weight.num_not_finite)}
    elements, bad = sum(weight.num_elements for weight in found), sum(not_finite.values())
    reason = f"{elements} weights in {len(found)} tensors, all finite"
    if not_finite:
        name, first = next(iter(not_finite.items()))
        reason = f"{bad} weights are NaN or infinite, {first} of them in '{name}'"
    return Verdict(
        gate="weights_are_finite",
        passed=not not_finite,
        reason=reason,
        figures={"tensors": len(found), "weights": elements, "not_finite": bad},
    )
