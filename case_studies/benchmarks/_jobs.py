"""A job of a benchmark: run once, to its end, with nobody who would start it again."""

from __future__ import annotations

import time
from typing import Any

from components.errors import StanchionError
from components.jobs import Job
from components.launchers import local


def result_of(job: Job) -> dict[str, Any]:
    """What rank 0 left; StanchionError with the end of the log when the job failed."""
    handle = local.launch(job, local.Config())
    try:
        while (code := handle.poll()) is None:
            time.sleep(0.5)
    finally:
        handle.stop()
    if code:
        raise StanchionError(f"{job.name} failed with exit code {code}:\n{handle.log_tail()}")
    return job.result()
