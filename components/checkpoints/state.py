"""How far a checkpoint has come, in a file beside it: it only moves forward.

    written -> committed -> validated
                    |            |
                    +------------+--> quarantined, for ever
                    |            |         |
                    +------------+---------+--> retired, while it is deleted

`written` is a folder under a name that no reader looks at; it has no state file. `committed` is whole and
hashed. `validated` has passed its gates, and only from there may anything be resumed or served. `retired` is
said before the first byte is deleted, so that half a checkpoint is never trusted.

Each step says what state it was decided on, so of two that decide at once (gates pass what a scrubber has
just found rotten) one looks again. After each, the pointer of the folder names the newest validated one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from components import storage
from components.checkpoints import names, pointer
from components.checkpoints.pointer import Target
from components.errors import CheckpointError, Conflict, NotValidated
from components.records import Verdict

TRIES = 10
LONG_AGO = datetime.fromtimestamp(0, UTC)
logger = logging.getLogger(__name__)


class State(BaseModel):
    """Where a checkpoint stands and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Literal["committed", "validated", "quarantined", "retired"]
    manifest_sha256: str
    """The manifest that was committed: another one under the same name is not this checkpoint."""
    reason: str | None = None
    verdicts: list[Verdict] = []
    at: datetime
    checksum: str = ""
    """SHA-256 of this file without these digits. Against rot, not forgers: nobody signs a state."""


def url_of(checkpoint: str) -> str:
    """Where the state of a checkpoint is kept."""
    return checkpoint.rstrip("/") + names.STATE


def read(checkpoint: str) -> State | None:
    """Where a checkpoint stands; None when it was never committed.

    A state that cannot be read is as good as quarantined: who walks over checkpoints goes on to the next.
    """
    found = _read(checkpoint)
    return None if found is None else _parse(checkpoint, found)


def committed_digest(checkpoint: str) -> str:
    """The digest a checkpoint is known by: SHA-256 of the manifest that was committed."""
    known = read(checkpoint)
    if known is None:
        raise _never_committed(checkpoint)
    return known.manifest_sha256


def commit(checkpoint: str, manifest_sha256: str) -> None:
    """Announce a checkpoint that is about to appear under this name, whole."""
    state = State(state="committed", manifest_sha256=manifest_sha256, at=datetime.now(UTC))
    storage.write_bytes(url_of(checkpoint), _bytes(state))


def validate(checkpoint: str, verdicts: list[Verdict]) -> None:
    """The gates have passed: it may be resumed from and served."""
    if refused := [verdict.gate for verdict in verdicts if not verdict.passed]:
        raise CheckpointError(f"{checkpoint} cannot be validated: {', '.join(refused)} refused it")

    def change(known: State) -> State:
        if known.state in ("quarantined", "retired"):
            raise NotValidated(
                f"{checkpoint} is {known.state} ({known.reason}); a {known.state} one never comes back: "
                "use another, `stanchion list checkpoints` shows them"
            )
        return _moved(known, state="validated", verdicts=verdicts)

    _change(checkpoint, change)
    gates = ", ".join(verdict.gate for verdict in verdicts)
    settle(names.folder_of(checkpoint), f"{names.name_of(checkpoint)} has passed {gates or 'no gate'}")


def quarantine(checkpoint: str, reason: str, verdicts: list[Verdict] | None = None) -> None:
    """Keep it for the post-mortem, never load it again; the first reason stays."""

    def change(known: State) -> State:
        if known.state in ("quarantined", "retired"):
            return known
        return _moved(known, state="quarantined", reason=reason, verdicts=verdicts or known.verdicts)

    _change(checkpoint, change)
    settle(names.folder_of(checkpoint), f"{names.name_of(checkpoint)} is quarantined: {reason}")


def retire(checkpoint: str, reason: str) -> None:
    """It is about to be deleted; from here on nobody uses it."""
    _change(checkpoint, lambda known: _moved(known, state="retired", reason=reason))
    settle(names.folder_of(checkpoint), f"{names.name_of(checkpoint)} is retired: {reason}")


def settle(folder: str, why: str) -> None:
    """Let the pointer of a folder name the newest validated checkpoint there is."""
    pointer.move(folder, lambda: _newest_validated(folder), why)


def _newest_validated(folder: str) -> Target | None:
    for url in names.newest_first(folder):
        known = read(url)
        if known is not None and known.state == "validated":
            name = names.name_of(url)
            step, _ = names.step_and_attempt(name)
            return Target(checkpoint=name, step=step, manifest_sha256=known.manifest_sha256)
    return None


def _change(checkpoint: str, change: Callable[[State], State]) -> None:
    """Write the state that follows from the present one, which is read again when another was faster."""
    for _ in range(TRIES):
        before = _read(checkpoint)
        if before is None:
            raise _never_committed(checkpoint)
        known = _parse(checkpoint, before)
        if (after := change(known)) == known:
            return
        try:
            storage.replace_bytes(url_of(checkpoint), _bytes(after), expected=before)
            return
        except Conflict:
            logger.info("%s was changed by someone else; looking again", url_of(checkpoint))
    raise Conflict(f"{url_of(checkpoint)} is changed by others all the time; try again")


def _moved(known: State, **change: object) -> State:
    return known.model_copy(update={**change, "at": datetime.now(UTC)})


def _read(checkpoint: str) -> bytes | None:
    url = url_of(checkpoint)
    try:
        return storage.read_bytes(url) if storage.exists(url) else None
    except FileNotFoundError:  # retired between the two
        return None


def _parse(checkpoint: str, content: bytes) -> State:
    try:
        found = State.model_validate_json(content)
        if found.checksum and found.checksum == _checksum(content, found.checksum):
            return found
        problem = "its checksum is of other bytes"
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
    reason = f"{url_of(checkpoint)} is not a state: {problem}"
    return State(state="quarantined", manifest_sha256="", reason=reason, at=LONG_AGO)


def _bytes(state: State) -> bytes:
    bare = _dumped(state.model_copy(update={"checksum": ""}))
    return _dumped(state.model_copy(update={"checksum": storage.sha256_of_bytes(bare)}))


def _dumped(state: State) -> bytes:
    return (state.model_dump_json(indent=1) + "\n").encode()


def _checksum(content: bytes, digits: str) -> str:
    """Of what is around the last of these digits."""
    before, _, after = content.rpartition(digits.encode())
    return storage.sha256_of_bytes(before + after)


def _never_committed(checkpoint: str) -> NotValidated:
    return NotValidated(f"{checkpoint} was never committed; it has no {url_of(checkpoint)}")
