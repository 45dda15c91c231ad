"""The body has as many syntax nodes as the human one, or more.

When to use: beside `parses`, to keep programs from shrinking to one line. What it costs: a walk over the
tree. Without it the length of completions falls to a fifth; with it they grow.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.alignment import programs


class Config(plugins.Config):
    """How much it counts."""

    weight: float = Field(default=0.5, gt=0)
    """Share of the reward, relative to the other weights."""


def score(prompt: str, completion: str, human: str) -> float:
    """Nodes over the human body's nodes, at most 1; 0 when it does not parse."""
    written, wanted = programs.read(prompt + completion), programs.read(prompt + human)
    if written is None or wanted is None:
        return 0.0
    return min(1.0, programs.size(written) / programs.size(wanted))
