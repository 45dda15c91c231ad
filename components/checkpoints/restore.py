"""Opening checkpoints: only what gates have vouched for, only bytes that match, checked before unpickling.

Pattern: Verified Rollback
Problem: the newest checkpoint may be the rotten one, and a restart that insists on it fails or trains on it.
Answer: walk back from the newest; what differs from its manifest is quarantined and passed over.
Trade-off: a rollback repeats the steps since the checkpoint that is still good.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from components import storage
from components.checkpoints import manifest, names, state
from components.checkpoints.manifest import Manifest
from components.checkpoints.names import newest_first as newest_first
from components.errors import CheckpointCorrupt, NotSigned, NotValidated
from components.records import Fault, Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were compared with its manifest."""

    url: str
    path: Path
    """Local folder with its content."""
    manifest: Manifest
    digest: str


def open_checkpoint(
    url: str, *, accept: tuple[str, ...] = ("validated",), scratch: Path | None = None
) -> Checkpoint:
    """A checkpoint to use; NotValidated when no gate vouches for it, CheckpointCorrupt names what differs.

    State, signature and manifest come first: of one that may not be used, nothing else is read or copied.
    """
    known = state.read(url)
    if known is None or known.state not in accept:
        raise NotValidated(_refusal(url, known))
    content, digest = manifest.read_at(url)
    if digest != known.manifest_sha256:
        raise CheckpointCorrupt(
            f"{url}/{manifest.NAME} has SHA-256 {digest[:12]}, {known.manifest_sha256[:12]} was committed by "
            f"{state.url_of(url)}; use an earlier checkpoint"
        )
    if names.NAME.fullmatch(names.name_of(url)) and names.step_and_attempt(url)[0] != content.step:
        raise CheckpointCorrupt(f"{url} holds step {content.step}, not the step of its name; use another one")
    path = storage.fetch(url, scratch)
    if different := manifest.differences(path, content):
        raise CheckpointCorrupt(f"{url}: {'; '.join(different)}; use an earlier checkpoint")
    return Checkpoint(url, path, content, digest)


def newest_validated(folder: str, scratch: Path | None = None) -> Checkpoint | None:
    """The newest checkpoint that is validated and still whole; rotten ones are quarantined on the way."""
    for url in newest_first(folder):
        if (checkpoint := _try(url, ("validated",), scratch)) is not None:
            return checkpoint
    return None


def newest_committed(folder: str) -> str | None:
    """The newest checkpoint that is not quarantined, judged or not; nothing of it is read."""
    for url in newest_first(folder):
        known = state.read(url)
        if known is not None and known.state in ("committed", "validated"):
            return url
    return None


def why(folder: str, chosen: str | None) -> str:
    """Why this checkpoint of a folder is taken and no newer one; a sentence for logs and records."""
    newer = []
    for url in newest_first(folder):
        if chosen is not None and names.name_of(url) == names.name_of(chosen):
            break
        newer.append(f"{names.name_of(url)} {_standing(state.read(url))}")
    over = f"passed over: {'; '.join(newer)}" if newer else "there is no newer one"
    if chosen is None:
        return f"no checkpoint of {folder} may be used; {over}"
    known = state.read(chosen)
    digest = known.manifest_sha256[:12] if known else "unknown"
    return f"{chosen} (manifest {digest}) {_standing(known)}; {over}"


def quarantine_faults(folder: str) -> list[Fault]:
    """What was set aside because its bytes were not right, as faults for the record."""
    known = ((url, state.read(url)) for url in newest_first(folder))
    return [
        Fault(
            kind="corruption",
            detail=found.reason or url,
            at=found.at,
            step=names.step_and_attempt(url)[0],
            recovered=True,
        )
        for url, found in known
        if found is not None and found.state == "quarantined" and is_rotten(found.verdicts)
    ]


def _try(url: str, accept: tuple[str, ...], scratch: Path | None) -> Checkpoint | None:
    try:
        return open_checkpoint(url, accept=accept, scratch=scratch)
    except NotSigned:  # said aloud: going back to an older one, or to none, may only hide a wrong key
        raise
    except NotValidated:
        return None
    except CheckpointCorrupt as error:
        logger.error("quarantined: %s", error)
        state.quarantine(url, str(error))
        return None


def is_rotten(verdicts: Sequence[Verdict]) -> bool:
    """Set aside by the files themselves or by the gate that looks at them, not for being a weak model."""
    refused = [verdict.gate for verdict in verdicts if not verdict.passed]
    return not refused or "files_match_manifest" in refused


def _standing(known: state.State | None) -> str:
    """A state with its date and ground, to follow a name."""
    if known is None:
        return "was never committed"
    at = f"{known.at:%Y-%m-%d %H:%M} UTC"
    if known.state == "validated":
        gates = ", ".join(verdict.gate for verdict in known.verdicts)
        return f"validated {at} by {gates or 'no gate'}"
    if known.state == "committed":
        return f"committed {at}, not yet judged"
    return f"{known.state} {at}: {known.reason}"


def _refusal(url: str, known: state.State | None) -> str:
    if known is None:
        return f"{url} was never committed: there is no {state.url_of(url)}; use an earlier checkpoint"
    if known.state in ("quarantined", "retired"):
        return f"{url} is {known.state}: {known.reason}; use an earlier checkpoint"
    return f"{url} is {known.state} but not validated; ask its gates first with `stanchion promote {url}`"
