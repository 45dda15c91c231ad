"""What each rank did, one JSON line an event: the raw material of plots, reports and post-mortems."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS = ("step", "update")
"""Kinds that say that a training step is done: of a loss, and of a policy."""


class EventLog:
    """Append-only log of one rank: `events/rank-00000.jsonl`."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self._file = (folder / f"rank-{rank:05d}.jsonl").open("a", buffering=1)

    def write(self, kind: str, **fields: Any) -> None:
        """Write one event: `step`, `evaluate`, `save`, `checkpoint`, `resume`, or `update` (of a policy)."""
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


class Tail:
    """What is written from now on, by all ranks: each call reads only what is new.

    `history` are the bytes of each log's past that the first call reads as well. Another pattern than that of
    ranks follows other logs of the folder.
    """

    def __init__(self, folder: Path, *, history: int = 0, pattern: str = "rank-*.jsonl") -> None:
        self.folder, self.pattern = folder, pattern
        self._read = {path: max(0, path.stat().st_size - history) for path in folder.glob(pattern)}

    def new(self) -> list[dict[str, Any]]:
        """Events since the last call, by time; a line that is just being written comes next time."""
        found: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob(self.pattern)):
            found += self._new_of(path)
        return sorted(found, key=lambda event: float(event["at"]))

    def _new_of(self, path: Path) -> Iterator[dict[str, Any]]:
        seen = self._read.get(path, 0)
        try:
            size = path.stat().st_size
            if size == seen:
                return
            with path.open("rb") as file:
                file.seek(seen := seen if size > seen else 0)  # a shorter log is another one
                whole, _, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        if whole:
            self._read[path] = seen + len(whole) + 1
            yield from _parsed(whole.decode(errors="replace"))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return _parsed(path.read_text())


def _parsed(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # the rank was killed in the middle of a line
        if isinstance(event, dict) and "at" in event and "kind" in event:
            yield event
