"""Which rank the network has cut off: from what the kernel still holds of data that ranks sent each other.

Ranks that wait in one collective for each other look alike to their beats, stacks and collectives. The kernel
knows more: on a link that is cut it keeps what was sent, and sends it again and again, while every other
connection is idle. The rank at which all such links meet is the one that is cut off.

Linux only, and of the ranks on this machine; elsewhere there is nothing to see, and nothing is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from components.reliability.finding import Confidence

ESTABLISHED = "01"
Link = tuple[int, int]
"""Sender and receiver of data that is not acknowledged, by rank."""


@dataclass(frozen=True)
class Cut:
    """Where nothing passes."""

    rank: int
    links: tuple[Link, ...]
    confidence: Confidence

    @property
    def sentence(self) -> str:
        """For a log line, a record and whoever is woken."""
        told = ", ".join(f"{sender} to {receiver}" for sender, receiver in self.links[:8])
        return f"the network no longer reaches rank {self.rank}: data sent again and again from rank {told}"


@dataclass(frozen=True)
class _Connection:
    """One end of one, as the kernel lists it."""

    local: str
    remote: str
    sent_again: int
    """Times that data was sent again and is still not acknowledged."""


def cut(pids: Mapping[int, int]) -> Cut | None:
    """What the connections between these ranks of this machine say."""
    known = {rank: list(_of_process(pid)) for rank, pid in pids.items()}
    owner = {one.local: rank for rank, held in known.items() for one in held}
    links = {
        (rank, owner[one.remote])
        for rank, held in known.items()
        for one in held
        if one.sent_again and one.remote in owner
    }
    return where_they_meet(links)


def where_they_meet(links: Iterable[Link]) -> Cut | None:
    """The rank that all these links have in common; of two at the ends of one, the one that gets nothing."""
    found = tuple(sorted(set(links)))
    if not found:
        return None
    common = sorted(set.intersection(*(set(link) for link in found)))
    if not common:
        return None
    towards = {rank: sum(receiver == rank for _, receiver in found) for rank in common}
    rank = max(common, key=lambda one: (towards[one], -one))
    alone = sum(towards[one] == towards[rank] for one in common) == 1
    sure: Confidence = "certain" if len(common) == 1 else "likely" if alone else "unclear"
    return Cut(rank, found, sure)


def _of_process(pid: int) -> Iterator[_Connection]:
    """Its established TCP connections."""
    sockets = _sockets(pid)
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                _, local, remote, state, queues, _, again, _, _, inode, *_ = line.split()
                if state == ESTABLISHED and inode in sockets:
                    waiting = int(queues.partition(":")[0], 16) > 0
                    yield _Connection(local, remote, int(again, 16) if waiting else 0)


def _sockets(pid: int) -> set[str]:
    """The numbers by which the kernel lists the sockets of a process."""
    found: set[str] = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    found.add(target[len("socket:[") : -1])
    return found
