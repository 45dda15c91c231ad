"""The validated checkpoint before this one, as its small files tell it: for gates that compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

from components.checkpoints import manifest, names, state
from components.checkpoints.manifest import Manifest
from components.checkpoints.state import State
from components.errors import CheckpointError


@dataclass(frozen=True)
class Previous:
    """Nothing of its weights was read."""

    url: str
    state: State
    manifest: Manifest

    @property
    def name(self) -> str:
        """`step-000400`."""
        return names.name_of(self.url)

    def figures(self, gate: str) -> Mapping[str, Any]:
        """What a gate measured when this one was validated; nothing where it was not asked."""
        return next((verdict.figures for verdict in self.state.verdicts if verdict.gate == gate), {})


def before(checkpoint: str) -> Previous | None:
    """The newest validated one in the same folder that comes before; None where there is none.

    One whose manifest is no longer the one that was committed is passed over: its figures are nobody's.
    """
    own = names.name_of(checkpoint)
    urls = dropwhile(lambda url: names.name_of(url) != own, names.newest_first(names.folder_of(checkpoint)))
    next(urls, None)  # itself
    return next((found for url in urls if (found := _read(url)) is not None), None)


def _read(url: str) -> Previous | None:
    try:
        known = state.read(url)
        if known is None or known.state != "validated":
            return None
        content, digest = manifest.read_at(url)
    except CheckpointError:
        return None
    return Previous(url, known, content) if digest == known.manifest_sha256 else None
