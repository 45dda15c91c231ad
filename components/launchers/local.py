"""Processes of this machine, started by torchrun and owned as a tree.

When to use: a laptop, one GPU box, every test. What it costs: nothing survives the machine.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """How the local process tree is treated."""

    grace_seconds: float = Field(default=5.0, gt=0)
    """Time between SIGTERM and SIGKILL of the tree."""
