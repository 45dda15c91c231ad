from __future__ import annotations

from components import plugins


class Config(plugins.Config):
    """Nothing to set."""
