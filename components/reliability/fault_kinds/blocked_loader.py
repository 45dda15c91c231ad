"""A read that never returns, as from a storage mount that hangs: the rank opens a pipe nobody writes to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from components import plugins


class Config(plugins.Config):
    """Nothing to choose: the read lasts until the rank is killed."""


def strike(config: Config) -> None:
    """Block in a read of a FIFO whose other end this process holds open and never writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard.tar"
        os.mkfifo(path)
        silent = os.open(path, os.O_RDWR)
        try:
            os.read(silent, 1)
        finally:
            os.close(silent)
