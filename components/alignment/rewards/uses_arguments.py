"""The body reads what the function was given.

When to use: beside `parses`, so that a body belongs to its signature. What it costs: a walk over the tree.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.alignment import programs


class Config(plugins.Config):
    """How much it counts."""

    weight: float = Field(default=0.2, gt=0)
    """Share of the reward, relative to the other weights."""


def score(prompt: str, completion: str, human: str) -> float:
    """Share of the arguments that the body reads; 0 when it does not parse."""
    written = programs.read(prompt + completion)
    return 0.0 if written is None else programs.argument_use(written)
