"""Asking gates: each plug-in of `components/gates/` is one claim, `judge` asks several, keeps their figures.

Pattern: Validation Gate
Problem: what a job wrote last is what the next one loads, whether or not it is any good.
Answer: nothing is loaded, resumed from or deployed until named claims have been checked on the thing itself.
Trade-off: each claim costs time before every promotion, and a claim that is too strict stops the line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.checkpoints.previous import Previous
from components.plugins import Config, load
from components.records import Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """What a gate is asked about: a folder on disk and the figures that were measured of it."""

    path: Path
    """Local folder of the checkpoint or release."""

    shards: Path | None = None
    """Local folder of the data set it was made from, for gates that evaluate."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the stage measured: held-out losses, rewards before and after, latencies."""

    previous: Previous | None = None
    """The validated checkpoint before, for gates that compare."""


def judge(subject: Subject, gates: Mapping[str, Config], *, passes: int = logging.INFO) -> list[Verdict]:
    """Ask every gate, in the order given. A gate that breaks has refused: it could not vouch.

    `passes` is the level at which one that passes is told; a refusal is always an error.
    """
    verdicts = [_ask(name, subject, config) for name, config in gates.items()]
    for verdict in verdicts:
        logger.log(
            passes if verdict.passed else logging.ERROR,
            "gate %s: %s: %s",
            verdict.gate,
            "pass" if verdict.passed else "FAIL",
            verdict.reason,
        )
    return verdicts


def _ask(name: str, subject: Subject, config: Config) -> Verdict:
    try:
        verdict: Verdict = load("components.gates", name).check(subject, config)
    except Exception as error:
        logger.exception("gate %s broke on %s", name, subject.path)
        return Verdict(gate=name, passed=False, reason=f"could not be asked: {type(error).__name__}: {error}")
    return verdict
