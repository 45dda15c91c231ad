"""The rank ends with an error of its own, as after an exception that nobody catches."""

from __future__ import annotations

import sys

from components import plugins


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config) -> None:
    """Raise SystemExit with a message."""
    sys.exit("drill: this rank was told to end with an error")
