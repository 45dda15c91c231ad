"""What people do to one checkpoint: promote it, set it aside, vouch for it with their key."""

from __future__ import annotations

import tempfile
from pathlib import Path

from components import storage
from components.checkpoints import check, manifest, names, reread, sign, state
from components.checkpoints.restore import open_checkpoint
from components.errors import CheckpointCorrupt, CheckpointError, ConfigError, NotValidated
from components.records import Verdict


def promote(checkpoint: str) -> list[Verdict]:
    """Ask the gates; when all agree it is the one that resume and deployment take.

    A refusal quarantines it and raises GateRefused. The newest validated one is always taken, so an older one
    can only be promoted once those after it have been quarantined.
    """
    url = _committed(checkpoint)
    _refuse_older(url)
    with tempfile.TemporaryDirectory(prefix="promote-") as scratch:
        try:
            found = open_checkpoint(url, accept=("committed", "validated"), scratch=Path(scratch))
        except CheckpointCorrupt as error:
            state.quarantine(url, str(error))
            raise
        shards = found.manifest.shards if found.manifest.stage == "pretrain" else ""
        there = bool(shards) and storage.exists(storage.join(shards, manifest.NAME))
        gates = check.default_gates(*(check.WITH_SHARDS if there else check.WITHOUT_SHARDS))
        return check.decide(url, gates, shards=shards if there else None, scratch=Path(scratch))


def quarantine(checkpoint: str, reason: str) -> state.State:
    """Never load it again; what stands in its state afterwards."""
    url = _committed(checkpoint)
    if not reason.strip():
        raise ConfigError("a quarantine needs a reason: whoever finds it in a month will ask; --reason WHY")
    state.quarantine(url, reason.strip())
    found = state.read(url)
    if found is None or found.state != "quarantined":
        raise NotValidated(f"{url} is being deleted; there is nothing to set aside any more")
    return found


def sign_with_our_key(checkpoint: str) -> None:
    """Sign one that has no signature, or another key's, if it still is what was committed."""
    url = _committed(checkpoint)
    if not sign.is_on():
        raise ConfigError(f"no key to sign with; export {sign.VARIABLE}=FILE")
    content = storage.read_bytes(storage.join(url, manifest.NAME))
    if storage.sha256_of_bytes(content) != state.committed_digest(url):
        raise CheckpointCorrupt(f"{url}/{manifest.NAME} is not what was committed; it is not signed")
    storage.write_bytes(storage.join(url, manifest.SIGNATURE), sign.signature(content))
    if faults := reread.faults(url):
        storage.remove(storage.join(url, manifest.SIGNATURE))
        raise CheckpointCorrupt(f"{url} is not what was committed, so it is not signed: {'; '.join(faults)}")


def _committed(checkpoint: str) -> str:
    url = checkpoint.rstrip("/")
    if not storage.exists(state.url_of(url)):
        raise ConfigError(
            f"no checkpoint at {url}; `stanchion list checkpoints {names.folder_of(url)}` shows what is there"
        )
    return url


def _refuse_older(url: str) -> None:
    for newer in names.newest_first(names.folder_of(url)):
        if names.name_of(newer) == names.name_of(url):
            return
        known = state.read(newer)
        if known is not None and known.state == "validated":
            raise CheckpointError(
                f"{newer} is validated and newer, and the newest is always taken; if it must not be used, "
                f"`stanchion quarantine {newer} --reason WHY` first"
            )
