"""The rank ends at once, as an out-of-memory killer or a lost node ends it: SIGKILL."""

from __future__ import annotations

import os
import signal

from components import plugins

LIVE = signal.SIGKILL
"""The signal that does the same to a running rank from outside."""


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config) -> None:
    """End this process; nothing after this line runs."""
    os.kill(os.getpid(), LIVE)
