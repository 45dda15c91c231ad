"""A flow with a job that never ends by itself, for proofs that end it: the whole path from Prefect to ranks.

Its ranks only beat, so that they start in a second.
"""

from __future__ import annotations

import time
from pathlib import Path

from prefect import flow

from components.jobs import Job, this_rank
from components.launchers import local
from tasks.launch_job import launch_job

RANKS = 2


@flow(name="endless")
def endless(folder: str) -> None:
    """Launch a job of two ranks and wait for it."""
    job = Job("endless", "case_studies.proofs._endless", {}, Path(folder), RANKS)
    launch_job("endless", lambda attempt: job, local.Config())


def main() -> None:
    """One rank."""
    rank, step = this_rank(), 0
    while True:
        step += 1
        rank.heartbeat.beat(step, "forward")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
