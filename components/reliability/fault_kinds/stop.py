"""The rank is there but runs no more, as on a node that hangs: SIGSTOP."""

from __future__ import annotations

import os
import signal

from components import plugins

LIVE = signal.SIGSTOP
"""The signal that does the same to a running rank from outside."""


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config) -> None:
    """Stop this process until someone sends SIGCONT."""
    os.kill(os.getpid(), LIVE)
