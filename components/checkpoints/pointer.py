"""Which checkpoint of a folder is the one to use: `validated.json` beside them, moved in one step.

It always names the newest validated one: forward when the gates have passed another, back when the one it
named was quarantined; `state` moves it. Whoever resumes still looks at the states, since a crash between a
state and the pointer leaves the pointer behind; the pointer is the answer for whoever does not want to look
at all of them, for stores whose lists are old, and for the question where it went, when and why.

Pattern: Conditional Move
Problem: two that move a pointer at the same time each believe in what they wrote, and one of them is wrong.
Answer: a mover says what it read; if the pointer says another thing by now it looks and decides again.
Trade-off: needs a lock or a store with conditional puts; on others the race is only made short.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from components import storage
from components.errors import CheckpointCorrupt, Conflict

NAME = "validated.json"
MOVES_KEPT = 20
TRIES = 10
logger = logging.getLogger(__name__)


class Target(BaseModel):
    """A checkpoint that may be pointed at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint: str
    """Its name; it lies beside the pointer, so both can be moved or copied together."""
    step: int
    manifest_sha256: str


class Move(BaseModel):
    """Where the pointer went, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: str | None
    why: str
    at: datetime


class Pointer(BaseModel):
    """What the file says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    target: Target | None = None
    """None when everything that was validated has been quarantined."""
    url: str | None = None
    """Where it was when the pointer was moved."""
    moves: tuple[Move, ...] = ()
    """The last ones, newest first."""

    @property
    def checkpoint(self) -> str | None:
        """The name of the checkpoint that is pointed at."""
        return self.target.checkpoint if self.target else None


def url_of(folder: str) -> str:
    """Where the pointer of a folder lies."""
    return storage.join(folder, NAME)


def read(folder: str) -> Pointer | None:
    """Where the pointer stands; None before anything was validated."""
    found = _read(folder)
    return None if found is None else _parse(folder, found)


def move(folder: str, choose: Callable[[], Target | None], why: str) -> Pointer:
    """Point at what `choose` says, which is asked again whenever someone else has moved meanwhile."""
    for _ in range(TRIES):
        before = _read(folder)
        known = _known(folder, before)
        target = choose()  # after the read: what is decided on older states meets a Conflict
        if known.target == target and (before is not None or target is None):
            return known
        moved = _moved(folder, known, target, why)
        try:
            storage.replace_bytes(
                url_of(folder), (moved.model_dump_json(indent=1) + "\n").encode(), expected=before
            )
        except Conflict:
            continue
        logger.info("%s names %s: %s", url_of(folder), moved.checkpoint or "nothing", why)
        return moved
    raise Conflict(f"{url_of(folder)} is being moved by others all the time; try again", url=url_of(folder))


def _read(folder: str) -> bytes | None:
    url = url_of(folder)
    try:
        return storage.read_bytes(url) if storage.exists(url) else None
    except FileNotFoundError:
        return None


def _parse(folder: str, content: bytes) -> Pointer:
    try:
        return Pointer.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointCorrupt(
            f"{url_of(folder)} is not a pointer: {error.errors()[0]['msg']}; remove it, "
            "`stanchion promote` of the newest validated checkpoint writes it anew"
        ) from None


def _known(folder: str, content: bytes | None) -> Pointer:
    """A pointer that cannot be read is replaced: what it should say is in the states."""
    try:
        return Pointer() if content is None else _parse(folder, content)
    except CheckpointCorrupt as error:
        logger.error("written anew: %s", error)
        return Pointer()


def _moved(folder: str, known: Pointer, target: Target | None, why: str) -> Pointer:
    step = Move(to=target.checkpoint if target else None, why=why, at=datetime.now(UTC))
    url = storage.join(folder, target.checkpoint) if target else None
    return Pointer(target=target, url=url, moves=(step, *known.moves)[:MOVES_KEPT])
