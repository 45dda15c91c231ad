"""An incident as a program: broken for real, without and with the pattern, judged by its own figures."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow

from components.config import Profile
from components.errors import GateRefused
from components.observability import study_page
from components.plugins import load
from components.records import Record, RunFolder, Stage, open_stage
from components.study import FOLDER, Result
from tasks.publish_study import publish_study
from tasks.run_study import run_study

logger = logging.getLogger(__name__)


@flow(name="run_case_study")
def run_case_study(name: str, profile: Profile, keep_results: bool = False) -> Record:
    """Run a case study anew; a number outside its range refuses it, and its record says which."""
    folder = RunFolder(profile.storage.root, FOLDER, profile.storage.scratch)
    stage: Stage
    try:
        with open_stage(folder, f"case_study.{name}", **_facts(profile)) as stage:
            result = run_study(name, profile, folder.scratch(name))
            stage.outputs += publish_study(folder, result)
            _note(stage, result)
            if keep_results:
                study_page.keep(_results_folder(name), result)
            if not result.passed:
                raise GateRefused(f"case study {name}", result.verdicts)
    except GateRefused as refusal:
        logger.error("%s", refusal)
    return stage.record


def _facts(profile: Profile) -> dict[str, Any]:
    """What the record says of where it ran; the time makes each run a new one."""
    return {
        "settings": {"profile": profile.model_dump(mode="json"), "at": datetime.now(UTC).isoformat()},
        "inputs": [],
        "profile": profile.name,
        "devices": profile.processes,
        "price_per_device_hour": profile.prices.device_hour,
        "currency": profile.prices.currency,
    }


def _note(stage: Stage, result: Result) -> None:
    stage.verdicts += result.verdicts
    stage.faults += result.study.faults
    stage.metrics |= {
        "verdict": result.study.verdict,
        "title": result.case.title,
        "pattern": result.case.pattern,
        "numbers": result.study.numbers,
    }


def _results_folder(name: str) -> Path:
    """Beside the study's own file, found as the plug-in it is."""
    return Path(str(load("case_studies", name).__file__)).parent / "results"
