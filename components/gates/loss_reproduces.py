"""A process that never saw the trainer loads the weights and gets the loss that the trainer wrote down.

When to use: for every checkpoint that others will load. It proves at once that the files load, that they are
the weights that were measured, and that the number was not made of anything else. What it costs: starting a
process that imports torch and transformers, and one pass over the fixed held-out batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pydantic import Field

from components import plugins
from components.checkpoints import manifest
from components.checkpoints.manifest import HeldOut
from components.data import manifest as datasets
from components.errors import DataError
from components.judgement import Subject
from components.records import Verdict

ROOT = Path(__file__).parents[2]


class Config(plugins.Config):
    """How near is the same."""

    tolerance: float = Field(default=1e-6, ge=0)
    """Largest difference in nats a token, when the trainer computed on a CPU as this gate does."""

    tolerance_across_devices: float = Field(default=0.02, ge=0)
    """The same when it did not: another device rounds differently."""

    timeout_seconds: float = Field(default=300, gt=0)
    """Longest wait for the process."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compute the loss again and compare."""
    content = manifest.read(subject.path)
    shards = _same_shards(subject.shards, content.shards_digest)
    loss = _computed(subject.path, shards, content.held_out, config.timeout_seconds)
    difference = abs(loss - content.held_out_loss)
    same_device = content.held_out.device == "cpu"
    allowed = config.tolerance if same_device else config.tolerance_across_devices
    return Verdict(
        gate="loss_reproduces",
        passed=difference <= allowed,
        reason=f"{loss:.6f} in a fresh process, {content.held_out_loss:.6f} in the trainer: "
        f"difference {difference:.1e}, allowed {allowed:.1e}",
        figures={
            "loss": loss,
            "trainer_loss": content.held_out_loss,
            "difference": difference,
            "tokens": content.held_out.sequences * content.held_out.sequence_length,
        },
    )


def _same_shards(shards: Path | None, digest: str) -> Path:
    if shards is None:
        raise DataError("the data set is not here, and without it no loss can be computed")
    if (found := datasets.digest(str(shards))) != digest:
        raise DataError(f"{shards} is data set {found[:12]}, the checkpoint was measured on {digest[:12]}")
    return shards


def _computed(checkpoint: Path, shards: Path, held_out: HeldOut, timeout_seconds: float) -> float:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "components.training.evaluate", str(checkpoint), str(shards)],
        env={**os.environ, "OMP_NUM_THREADS": str(held_out.threads), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )
    if done.returncode:
        raise DataError(f"the weights could not be evaluated: {done.stderr.strip().splitlines()[-1]}")
    return float(json.loads(done.stdout.splitlines()[-1])["held_out_loss"])
