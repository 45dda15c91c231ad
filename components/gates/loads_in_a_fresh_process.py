"""A process that never saw the trainer loads model and tokenizer from the folder and makes one prediction.

When to use: where no data set is there to compute a loss on; `loss_reproduces` implies this and says more.
What it costs: starting a process that imports torch and transformers, about five seconds, and one load.
"""

from __future__ import annotations

import time

from pydantic import Field

from components import plugins
from components.checkpoints import fresh_process
from components.errors import DataError
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """How much it may take."""

    threads: int = Field(default=1, ge=1)
    """OpenMP threads of the process."""

    timeout_seconds: float = Field(default=300, gt=0)
    """Longest wait for the process."""


def check(subject: Subject, config: Config) -> Verdict:
    """Start it and read what it says."""
    started = time.perf_counter()
    try:
        said = fresh_process.ask(
            "components.checkpoints.first_answer",
            str(subject.path),
            threads=config.threads,
            timeout_seconds=config.timeout_seconds,
        )
    except DataError as error:
        spent = round(time.perf_counter() - started, 3)
        return Verdict(
            gate="loads_in_a_fresh_process", passed=False, reason=str(error), figures={"seconds": spent}
        )
    spent = round(time.perf_counter() - started, 3)
    return Verdict(
        gate="loads_in_a_fresh_process",
        passed=True,
        reason=f"{said['parameters']} parameters loaded in {said['seconds_to_load']:.2f} s, "
        f"{said['tokens']} x {said['vocabulary']} logits in {said['seconds_to_answer']:.2f} s, "
        f"{spent:.1f} s with the start of the process",
        figures={**said, "seconds": spent},
    )
