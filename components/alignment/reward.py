"""What a completion is worth: the weighted mean of the rewards that the run names."""

from __future__ import annotations

from collections.abc import Mapping

from components.plugins import Config, load

PACKAGE = "components.alignment.rewards"


def reward(rewards: Mapping[str, Config], prompt: str, completion: str, human: str, *, ended: bool) -> float:
    """Between 0 and 1; a completion that was cut off is worth 0, whatever it would have become."""
    if not ended:
        return 0.0
    weights = {name: float(getattr(config, "weight", 1.0)) for name, config in rewards.items()}
    scores = {name: load(PACKAGE, name).score(prompt, completion, human) for name in rewards}
    total: float = sum(weights[name] * scores[name] for name in rewards) / sum(weights.values())
    return total


def advantages(rewards: list[float], samples_per_prompt: int) -> list[float]:
    """Each reward less the mean of the other samples of its prompt (leave-one-out, RLOO)."""
    found: list[float] = []
    for start in range(0, len(rewards), samples_per_prompt):
        group = rewards[start : start + samples_per_prompt]
        found += [value - (sum(group) - value) / (samples_per_prompt - 1) for value in group]
    return found
