"""Where checkpoints lie and what they are called: `step-000400`, or `step-000400-2` for a second attempt."""

from __future__ import annotations

import re
from collections.abc import Iterator

from components import storage
from components.checkpoints import pointer

NAME = re.compile(r"step-(\d+)(?:-(\d+))?")
STATE = ".state.json"
"""After the name: the file beside a checkpoint that says how far it has come."""


def newest_first(folder: str) -> Iterator[str]:
    """Checkpoints under a folder by step and attempt, newest first.

    What a store lists may be out of date, so the one that the pointer names is looked for in any case.
    """
    names = {name for name in storage.listing(folder) if NAME.fullmatch(name)}
    if not storage.is_local(folder) and (pointed := pointer.read(folder)) and pointed.checkpoint:
        names.add(pointed.checkpoint)
    for name in sorted(names, key=step_and_attempt, reverse=True):
        yield storage.join(folder, name)


def step_and_attempt(name: str) -> tuple[int, int]:
    """What orders checkpoints; of a name or a URL."""
    found = NAME.fullmatch(name_of(name))
    if found is None:
        raise ValueError(f"{name} is not called like a checkpoint, step-000400")
    return int(found[1]), int(found[2] or 1)


def name_of(checkpoint: str) -> str:
    """The last part of a URL."""
    return checkpoint.rstrip("/").rpartition("/")[2]


def folder_of(checkpoint: str) -> str:
    """The folder or URL that a checkpoint lies in, beside its state."""
    return checkpoint.rstrip("/").rpartition("/")[0] or "."


def folders_in(url: str) -> list[str]:
    """Every folder of checkpoints in what was named: itself, those of a run, or of all runs under a root."""
    url = url.rstrip("/")
    names = storage.listing(url)
    if any(name.endswith(STATE) for name in names):
        return [url]
    if "checkpoints" in names:
        inside = storage.join(url, "checkpoints")
        found = [storage.join(inside, stage) for stage in storage.listing(inside)]
        return [folder for folder in found if any(name.endswith(STATE) for name in storage.listing(folder))]
    runs = [storage.join(url, name) for name in names if not name.startswith(".")]
    return [folder for run in runs if "checkpoints" in storage.listing(run) for folder in folders_in(run)]
