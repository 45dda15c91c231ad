"""Every shard that the rank has open gives EIO when it is read, as a mount does whose device has gone.

The error is the kernel's: the open files are exchanged under their numbers for the process's own memory,
which at the offsets of a shard is not mapped, and reading that is EIO. Linux only. Not struck: shards opened
later, and loader workers, which have files of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from components import plugins
from components.errors import ConfigError

MEMORY = "/proc/self/mem"


class Config(plugins.Config):
    """Nothing to choose: the files stay so."""


def strike(config: Config) -> None:
    """Exchange the files; ConfigError when no shard is open, or where there is no /proc."""
    opened = [number for number, path in open_files() if path.endswith(".tar")]
    if not opened:
        raise ConfigError(
            "this rank has no shard open, so no read of it can fail; strike a later step, and without "
            "training.loader_workers"
        )
    memory = os.open(MEMORY, os.O_RDONLY | os.O_CLOEXEC)
    for number in opened:
        os.dup2(memory, number, inheritable=False)
    os.close(memory)


def open_files() -> Iterator[tuple[int, str]]:
    """Number and path of each file of this process."""
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        raise ConfigError("a process finds its files in /proc, which this system does not have")
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # the folder itself, open while it was listed
            yield int(name), os.readlink(f"{folder}/{name}")
