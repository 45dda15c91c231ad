"""How far a checkpoint has come, in a file beside it: it only moves forward.

    written -> committed -> validated
                    |            |
                    +------------+--> quarantined, for ever

`written` is a folder under a name that no reader looks at; it has no state file. `committed` is whole and
hashed. `validated` has passed its gates, and only from there may anything be resumed or served.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from components import storage
from components.errors import CheckpointCorrupt, CheckpointError, NotValidated
from components.records import Verdict


class State(BaseModel):
    """Where a checkpoint stands and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Literal["committed", "validated", "quarantined"]
    manifest_sha256: str
    """The manifest that was committed: another one under the same name is not this checkpoint."""
    reason: str | None = None
    verdicts: list[Verdict] = []
    at: datetime


def url_of(checkpoint: str) -> str:
    """Where the state of a checkpoint is kept."""
    return f"{checkpoint.rstrip('/')}.state.json"


def read(checkpoint: str) -> State | None:
    """Where a checkpoint stands; None when it was never committed."""
    url = url_of(checkpoint)
    if not storage.exists(url):
        return None
    try:
        return State.model_validate_json(storage.read_bytes(url))
    except ValidationError as error:
        raise CheckpointCorrupt(f"{url} is not a state: {error.errors()[0]['msg']}") from None


def committed_digest(checkpoint: str) -> str:
    """The digest a checkpoint is known by: SHA-256 of the manifest that was committed."""
    return _known(checkpoint).manifest_sha256


def commit(checkpoint: str, manifest_sha256: str) -> None:
    """Announce a checkpoint that is about to appear under this name, whole."""
    _write(checkpoint, State(state="committed", manifest_sha256=manifest_sha256, at=datetime.now(UTC)))


def validate(checkpoint: str, verdicts: list[Verdict]) -> None:
    """The gates have passed: it may be resumed from and served."""
    known = _known(checkpoint)
    if known.state == "quarantined":
        raise NotValidated(
            f"{checkpoint} is quarantined ({known.reason}); a quarantined one never comes back"
        )
    if refused := [verdict.gate for verdict in verdicts if not verdict.passed]:
        raise CheckpointError(f"{checkpoint} cannot be validated: {', '.join(refused)} refused it")
    _write(checkpoint, known.model_copy(update={"state": "validated", "verdicts": verdicts, "at": _now()}))


def quarantine(checkpoint: str, reason: str, verdicts: list[Verdict] | None = None) -> None:
    """Keep it for the post-mortem, never load it again."""
    known = _known(checkpoint)
    change = {"state": "quarantined", "reason": reason, "verdicts": verdicts or known.verdicts, "at": _now()}
    _write(checkpoint, known.model_copy(update=change))


def _known(checkpoint: str) -> State:
    known = read(checkpoint)
    if known is None:
        raise NotValidated(f"{checkpoint} was never committed; it has no {url_of(checkpoint)}")
    return known


def _now() -> datetime:
    return datetime.now(UTC)


def _write(checkpoint: str, state: State) -> None:
    storage.write_text(url_of(checkpoint), state.model_dump_json(indent=1) + "\n")
