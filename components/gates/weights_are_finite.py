"""No weight is NaN or infinite, and each tensor on disk is the one that the trainer held in memory.

When to use: always; a diverged run writes perfectly intact files. What it costs: one read of the weights, in
plain numpy. The digests were taken before serialisation, so a write that went wrong shows here too.
"""

from __future__ import annotations

from components import plugins
from components.checkpoints import manifest, weights
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """Nothing to set."""


def check(subject: Subject, config: Config) -> Verdict:
    """Look at every element of model.safetensors."""
    wanted = manifest.read(subject.path).tensors
    found = list(weights.read(subject.path / "model.safetensors"))
    not_finite = {weight.name: bad for weight in found if (bad := weight.num_not_finite)}
    elements = sum(weight.num_elements for weight in found)
    digests = {weight.name: weight.digest for weight in found}
    changed = sorted(n for n in wanted.keys() | digests.keys() if wanted.get(n) != digests.get(n))
    reason = f"{elements} weights in {len(found)} tensors, all finite, all as they were in memory"
    if not_finite:
        name, bad = next(iter(not_finite.items()))
        reason = f"{sum(not_finite.values())} weights are NaN or infinite, {bad} of them in '{name}'"
    elif changed:
        reason = f"{len(changed)} tensors differ from what was in memory, first '{changed[0]}'"
    return Verdict(
        gate="weights_are_finite",
        passed=not not_finite and not changed,
        reason=reason,
        figures={
            "tensors": len(found),
            "weights": elements,
            "not_finite": sum(not_finite.values()),
            "changed": len(changed),
        },
    )
