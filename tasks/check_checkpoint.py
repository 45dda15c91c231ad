"""Whether a checkpoint may be used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from components.checkpoints import retention
from components.checkpoints.check import decide
from components.checkpoints.names import folder_of
from components.checkpoints.retention import Retention
from components.errors import GateRefused
from components.plugins import Config
from components.records import Verdict


@task(cache_policy=NO_CACHE)
def check_checkpoint(
    checkpoint: str,
    gates: Mapping[str, Config],
    shards: str | None = None,
    scratch: Path | None = None,
    figures: Mapping[str, Any] | None = None,
    keep: Retention | None = None,
) -> list[Verdict]:
    """Validate the checkpoint, or quarantine it and raise with the figures of all gates.

    Once it is validated, older ones go as far as `keep` allows.
    """
    try:
        verdicts = decide(checkpoint, gates, shards=shards, scratch=scratch, figures=figures)
    except GateRefused as refusal:
        _show(refusal.verdicts)
        raise
    _show(verdicts)
    if keep is not None:
        retention.apply(folder_of(checkpoint), keep)
    return verdicts


def _show(verdicts: list[Verdict]) -> None:
    table = [verdict.model_dump(include={"gate", "passed", "reason"}) for verdict in verdicts]
    create_table_artifact(key="checkpoint-gates", table=table)
