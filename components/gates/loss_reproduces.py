"""A process that never saw the trainer loads the weights and gets the loss that the trainer wrote down.

When to use: for every checkpoint that others will load. It proves at once that the files load, that they are
the weights that were measured, and that the number was not made of anything else. What it costs: starting a
process that imports torch and transformers, and one pass over the fixed held-out batch.

Measured: on one processor, by the same torch with as many threads, the difference is 0 to the last bit,
whatever trained: 1, 2 or 3 ranks, ZeRO 0, 1, 2 or 3, bf16 or fp32. So there nothing else is accepted. On
other devices or processors sums are rounded in another order, and a tolerance is all that can be asked.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from components import plugins
from components.checkpoints import fresh_process, manifest
from components.checkpoints.manifest import HeldOut
from components.data import manifest as datasets
from components.errors import DataError
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """How near is the same."""

    tolerance: float = Field(default=0.0, ge=0)
    """Largest difference in nats a token, where the trainer computed with the same processor and torch."""

    tolerance_elsewhere: float = Field(default=0.02, ge=0)
    """The same where it did not."""

    timeout_seconds: float = Field(default=300, gt=0)
    """Longest wait for the process."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compute the loss again and compare."""
    content = manifest.read(subject.path)
    shards = _same_shards(subject.shards, content.shards_digest)
    said = fresh_process.ask(
        "components.training.evaluate",
        str(subject.path),
        str(shards),
        threads=content.held_out.threads,
        timeout_seconds=config.timeout_seconds,
    )
    loss, same = float(said["held_out_loss"]), _same_world(content.held_out, said["arithmetic"])
    difference = abs(loss - content.held_out_loss)
    allowed = config.tolerance if same else config.tolerance_elsewhere
    apart = f"difference {difference:.1e}" if difference else "no difference"
    return Verdict(
        gate="loss_reproduces",
        passed=difference <= allowed,  # false for NaN too
        reason=f"{loss:.6f} in a fresh process, {content.held_out_loss:.6f} in the trainer, "
        f"{'the same world' if same else 'another world'}: {apart}, "
        f"{f'{allowed:.1e} is' if allowed else 'none is'} allowed",
        figures={
            "loss": loss,
            "trainer_loss": content.held_out_loss,
            "difference": difference,
            "allowed": allowed,
            "same_world": same,
            "tokens": content.held_out.sequences * content.held_out.sequence_length,
        },
    )


def _same_world(held_out: HeldOut, arithmetic: str) -> bool:
    """Device, processor and torch. Precision and threads are the trainer's anyhow; ranks do not matter."""
    return held_out.device == "cpu" and held_out.arithmetic == arithmetic


def _same_shards(shards: Path | None, digest: str) -> Path:
    if shards is None:
        raise DataError("the data set is not here, and without it no loss can be computed")
    if (found := datasets.digest(str(shards))) != digest:
        raise DataError(f"{shards} is data set {found[:12]}, the checkpoint was measured on {digest[:12]}")
    return shards
