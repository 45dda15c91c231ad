"""Whether a server may take traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE

from components.errors import GateRefused
from components.judgement import Subject, judge
from components.plugins import Config
from components.records import Artifact, Verdict


@task(cache_policy=NO_CACHE)
def check_deployment(
    release: Artifact, figures: Mapping[str, Any], gates: Mapping[str, Config]
) -> list[Verdict]:
    """Ask the deployment gates about what was measured; one that says no raises, with all their figures."""
    verdicts = judge(Subject(Path(release.url), figures=figures), gates)
    table = [v.model_dump(include={"gate", "passed", "reason"}) for v in verdicts]
    create_table_artifact(key="deployment-gates", table=table)
    if not all(verdict.passed for verdict in verdicts):
        raise GateRefused(f"release {release.digest[:12]}", verdicts)
    return verdicts
