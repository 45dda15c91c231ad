"""Samples that could not be read: each is a row of a table, and there may be only so many.

One folder holds the table of a whole job: every process appends to a file of its own, and the limits count
what all of them have met. A sample that is met again in a later epoch, or after a restart, is the same row.

Pattern: Quarantine with a Budget
Problem: skip bad samples and a broken disk eats the corpus in silence; stop at each and one bit ends a night.
Answer: skipping is asked for, has a limit in count and in share over all ranks, and leaves a row each time.
Trade-off: the model has not seen what is in the table; build the shards again before the next run.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from components import plugins
from components.data.manifest import Shard
from components.errors import ShardIntegrityError

Row = dict[str, Any]
Known = tuple[str, str, int]
"""Kind, shard and row of what is in the table."""
NO_ROW = -1
"""Where the row of a sample would stand, for a whole index."""

logger = logging.getLogger(__name__)


class Policy(plugins.Config):
    """Fail on the first sample that is not what was written, or go on without it, up to two limits."""

    on_fault: Literal["fail", "skip"] = "fail"
    """`fail` ends the job; `skip` lists the sample and leaves a hole in its sequence."""

    max_documents: int = Field(default=10, ge=0)
    """Most documents that may be skipped."""

    max_share: float = Field(default=0.001, ge=0, le=1)
    """And the most as a share of all documents that could be read."""


class Quarantine:
    """One process's hand on the table. `drop` fits a stream, `mended` a reader; both may be pickled."""

    def __init__(
        self,
        folder: Path,
        *,
        policy: Policy,
        documents: int,
        who: str = "",
        tell: Callable[[Row], None] | None = None,
    ) -> None:
        self.folder, self.policy, self.documents = folder, policy, documents
        self.who = who
        """Names this process's file; without it, its process id does."""
        self.tell = tell
        """Told of each new row of this process."""
        self._known: set[Known] = set()

    def drop(self, error: ShardIntegrityError, shard: Shard, row: int) -> None:
        """Note a sample that is left out; raises when that is not allowed, or no longer."""
        if self.policy.on_fault == "fail":
            raise error
        if self._note("sample", error, shard.name, row, shard.source):
            logger.warning("left out sample %d of %s: %s", row, shard.name, error)
        self._refuse_too_many(error)

    def mended(self, error: ShardIntegrityError) -> None:
        """Note an index that was made again from its tar; nothing is lost, so nothing is counted."""
        if self._note("index", error, error.shard, NO_ROW, ""):
            logger.warning("made the index of %s again from its tar: %s", error.shard, error)

    def _note(self, kind: str, error: ShardIntegrityError, shard: str, row: int, source: str) -> bool:
        """Add a row unless somebody has; whether it was added."""
        known = (kind, shard, row)
        if known in self._known:
            return False
        self._known = {_known(one) for one in _rows(self.folder)}
        if known in self._known:
            return False
        self._known.add(known)
        line = {
            "time": datetime.now(UTC).isoformat(),
            "kind": kind,
            "shard": shard,
            "row": row,
            "key": error.key,
            "offset": error.offset,
            "source": source,
            "reason": str(error),
            "who": self.who or str(os.getpid()),
        }
        self._append(line)
        if self.tell:
            self.tell(line)
        return True

    def _append(self, line: Row) -> None:
        """One write at the end of the file: lines of several processes never mix."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(line, sort_keys=True).encode() + b"\n"
        path = self.folder / f"{line['who']}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if (written := os.write(descriptor, content)) != len(content):
                raise OSError(
                    f"only {written} of {len(content)} bytes of a row went to {path}; free the disk"
                )
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _refuse_too_many(self, error: ShardIntegrityError) -> None:
        """Rows are written before they are counted: of two processes at the limit at least one sees both."""
        self._known |= {_known(one) for one in _rows(self.folder)}
        found, policy = sum(kind == "sample" for kind, _, _ in self._known), self.policy
        if found <= policy.max_documents and found <= policy.max_share * self.documents:
            return
        share = found / self.documents if self.documents else 1.0
        raise ShardIntegrityError(
            f"{found} of {self.documents} documents ({share:.3%}) could not be read; allowed are "
            f"max_documents={policy.max_documents} and max_share={policy.max_share:.3%}; they are listed in "
            f"{self.folder}; build their shards again with `stanchion rebuild`, or raise the limits; the "
            f"last one: {error}",
            shard=error.shard,
            key=error.key,
            offset=error.offset,
        ) from error

    def __getstate__(self) -> dict[str, Any]:
        """Another process has nobody to tell; its rows are in the table all the same."""
        return {**self.__dict__, "tell": None}


def table(folder: Path) -> list[Row]:
    """Every row that any process wrote, each sample or index once, by kind, shard and row."""
    first: dict[Known, Row] = {}
    for row in sorted(_rows(folder), key=lambda row: str(row["time"])):
        first.setdefault(_known(row), row)
    return [first[known] for known in sorted(first)]


def _rows(folder: Path) -> Iterator[Row]:
    """What is in the files now; a line without an end was cut by a full disk or a kill."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def _known(row: Row) -> Known:
    return row["kind"], row["shard"], row["row"]
