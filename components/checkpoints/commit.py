"""From the files of all ranks to a checkpoint: manifest, announcement, rename, in this order; rank 0 alone.

A crash at any point leaves either nothing under a name that readers look at, or a whole checkpoint.
"""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path

from components import storage
from components.checkpoints import manifest, rank_files, state
from components.checkpoints.manifest import Manifest
from components.checkpoints.rank_files import Reached, Report
from components.errors import CheckpointError

EVERY = 0.02
"""Seconds between two looks for reports."""
logger = logging.getLogger(__name__)


def gather(staged: Path, ranks: int, timeout_seconds: float) -> list[Report]:
    """The reports of all ranks; CheckpointError when one failed, or is silent for too long."""
    give_up = time.monotonic() + timeout_seconds
    while (reports := rank_files.told(staged, ranks)) is None:
        if time.monotonic() > give_up:
            there = {path.stem for path in rank_files.reports_of(staged).glob("*.json")}
            silent = [str(rank) for rank in range(ranks) if f"{rank:05d}" not in there]
            raise CheckpointError(
                f"rank {', '.join(silent)} has not written its part of {staged.name} within "
                f"{timeout_seconds:g} s; is {staged.parent} one folder for all ranks, and fast enough? "
                "training.checkpoints.timeout_seconds is the limit"
            )
        time.sleep(EVERY)
    if failed := [f"rank {report.rank}: {report.error}" for report in reports if report.error]:
        raise CheckpointError(f"{staged.stem} could not be saved: {'; '.join(failed)}")
    return reports


def publish(staged: Path, draft: Manifest, reports: list[Report], folder: str, reached: Reached) -> str:
    """Give a staged checkpoint its name; its URL."""
    files = {name: entry for report in reports for name, entry in report.files.items()}
    known = {"tensors": reports[0].tensors, "partitions": [report.partition for report in reports]}
    manifest.seal(staged, draft.model_copy(update=known), files)
    reached("sealed")
    url = storage.join(folder, free_name(folder, draft.step))
    state.commit(url, manifest.digest(staged))
    reached("announced")
    storage.publish_folder(staged, url, last=manifest.NAME)
    logger.info("checkpoint of step %d: %s", draft.step, url)
    return url


def copy(source: Path, name: str, folder: str, reached: Reached) -> str:
    """Publish a checkpoint a second time, on another tier; as committed, since nobody judged it there."""
    target = storage.join(folder, name)
    if storage.is_local(folder):
        aside = storage.local_path(folder) / f"{name}.partial"
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(source, aside)
        source = aside
    reached("copied away")
    state.commit(target, manifest.digest(source))
    storage.publish_folder(source, target, last=manifest.NAME)
    logger.info("copied to %s", target)
    return target


def free_name(folder: str, step: int) -> str:
    """`step-000400`, or `step-000400-2` when an attempt that was rolled back has already saved that step."""
    taken, name, attempt = set(storage.listing(folder)), f"step-{step:06d}", 1
    while (candidate := name if attempt == 1 else f"{name}-{attempt}") in taken:
        attempt += 1
    return candidate
