"""The whole text is one function with a body.

When to use: always, as the condition of the others. What it costs: a parse. Alone it is hacked within thirty
updates: every body becomes `pass` or `self.close()`, and `policy_did_not_cheat` refuses the policy.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.alignment import programs


class Config(plugins.Config):
    """How much it counts."""

    weight: float = Field(default=0.3, gt=0)
    """Share of the reward, relative to the other weights."""


def score(prompt: str, completion: str, human: str) -> float:
    """1 when it parses, else 0."""
    return float(programs.read(prompt + completion) is not None)
