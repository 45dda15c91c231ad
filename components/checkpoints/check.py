"""Asking the gates about a checkpoint where it lies: for flows before they use it, for people by its path."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components import storage
from components.checkpoints import manifest, state
from components.checkpoints.previous import before
from components.checkpoints.restore import newest_first, open_checkpoint, why
from components.errors import CheckpointCorrupt, GateRefused
from components.judgement import Subject, judge
from components.plugins import Config, load
from components.records import Artifact, Verdict

logger = logging.getLogger(__name__)

FILES_ONLY = ("files_match_manifest", "tensors_match_digests", "weights_are_finite", "norms_within_bounds")
WITH_SHARDS = (*FILES_ONLY, "loss_reproduces", "loss_is_no_worse", "beats_a_unigram_model")
WITHOUT_SHARDS = (*FILES_ONLY, "loads_in_a_fresh_process")


def check_path(path: Path) -> list[Verdict]:
    """What the gates say of a checkpoint folder; those that need the data set only where it is found."""
    shards = _shards_of(path)
    gates = default_gates(*(WITHOUT_SHARDS if shards is None else WITH_SHARDS))
    return judge(Subject(path, shards=shards, previous=before(str(path))), gates)


def decide(
    url: str,
    gates: Mapping[str, Config],
    *,
    shards: str | None = None,
    scratch: Path | None = None,
    figures: Mapping[str, Any] | None = None,
    passes: int = logging.INFO,
) -> list[Verdict]:
    """Validate a committed checkpoint, or quarantine it and raise GateRefused with every figure."""
    manifest.refuse_unless_signed(url)  # an error, not a verdict: a wrong key would quarantine everything
    local = storage.fetch(shards, scratch) if shards else None
    subject = Subject(storage.fetch(url, scratch), shards=local, figures=figures or {}, previous=before(url))
    verdicts = judge(subject, gates, passes=passes)
    if all(verdict.passed for verdict in verdicts):
        state.validate(url, verdicts)
        return verdicts
    refusal = GateRefused(url, verdicts)
    state.quarantine(url, str(refusal), verdicts)
    raise refusal


def resumable(folder: str, scratch: Path | None = None) -> str | None:
    """The newest checkpoint that a job may go on from; what is rotten on the way to it is quarantined.

    One that no gate has seen yet, because the job died first, is asked for all that its files alone can tell.
    """
    chosen = _first_usable(folder, scratch)
    if chosen is None and next(newest_first(folder), None) is None:
        logger.info("starts at step 0: there is no checkpoint in %s", folder)
    else:
        logger.info("%s: %s", "goes on from" if chosen else "starts at step 0", why(folder, chosen))
    return chosen


def _first_usable(folder: str, scratch: Path | None) -> str | None:
    for url in newest_first(folder):
        known = state.read(url)
        if known is None or known.state not in ("committed", "validated"):
            continue
        try:
            if known.state == "committed":
                decide(url, default_gates(*FILES_ONLY), scratch=scratch)
            return open_checkpoint(url, scratch=scratch).url
        except GateRefused as refusal:
            logger.error("passed over: %s", refusal)
        except CheckpointCorrupt as error:
            logger.error("passed over: %s", error)
            state.quarantine(url, str(error))
    return None


def artifact_of(url: str, name: str = "checkpoint") -> Artifact:
    """A checkpoint as a stage's output."""
    return Artifact(name=name, url=url, digest=state.committed_digest(url))


def default_gates(*names: str) -> dict[str, Config]:
    """Gates by name, with their default settings."""
    return {name: load("components.gates", name).Config() for name in names}


def _shards_of(path: Path) -> Path | None:
    """The data set a pre-training checkpoint was measured on, when it is on this machine."""
    try:
        content = manifest.read(path)
    except CheckpointCorrupt:
        return None
    if content.stage != "pretrain" or not storage.is_local(content.shards):
        return None
    shards = storage.local_path(content.shards)
    return shards if (shards / manifest.NAME).is_file() else None
