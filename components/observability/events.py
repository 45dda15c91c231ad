"""What each rank did, one JSON line an event: the raw material of plots, reports and post-mortems."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventLog:
    """Append-only log of one rank: `events/rank-00000.jsonl`."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self._file = (folder / f"rank-{rank:05d}.jsonl").open("a", buffering=1)

    def write(self, kind: str, **fields: Any) -> None:
        """Write one event: `step`, `evaluate`, `checkpoint`, `resume`, or `update` (of a policy)."""
        event = {"at": time.time(), "kind": kind, "rank": self.rank, **fields}
        self._file.write(json.dumps(event, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """End the log; a rank that ends without it loses nothing, lines are flushed one by one."""
        self._file.close()


def read(folder: Path, kind: str | None = None, rank: int | None = None) -> list[dict[str, Any]]:
    """Events of a folder by time, of one kind or one rank when asked; a torn last line is left out."""
    names = sorted(folder.glob("rank-*.jsonl")) if rank is None else [folder / f"rank-{rank:05d}.jsonl"]
    events = [event for name in names if name.exists() for event in _lines(name)]
    chosen = [event for event in events if kind is None or event["kind"] == kind]
    return sorted(chosen, key=lambda event: float(event["at"]))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue  # the rank was killed in the middle of a line
