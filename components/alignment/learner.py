"""What both trainers share: an engine around a checkpoint's model, its updates, saves and resumption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from components.alignment.config import Alignment
from components.checkpoints.manifest import Manifest
from components.checkpoints.restore import Checkpoint, open_checkpoint
from components.checkpoints.resume import resume
from components.checkpoints.save import Saved, Saver
from components.data import manifest as datasets
from components.data.stream import fixed_batch
from components.errors import CheckpointError
from components.jobs import Rank
from components.observability.provenance import code_digest
from components.plugins import Config
from components.training import engine as engines
from components.training.config import Model, Training
from components.training.evaluate import held_out_loss, measured
from components.training.model import PRECISIONS
from components.training.phases import Phases


class Settings(Config):
    """What a flow asks of a job that starts from a checkpoint."""

    shards: str
    """The data set's folder."""
    pairs: str
    """The file that `pairs.collect` wrote."""
    start_from: str
    """The validated checkpoint whose weights are the start."""
    checkpoints: str
    """Folder under which checkpoints are published."""
    scratch: str
    """Local folder that all ranks see, for what is being written."""
    model: Model = Model()
    training: Training = Training()
    """Precision, weight decay, clipping, held-out batch and timeout are those of pre-training."""
    alignment: Alignment = Alignment()
    parallelism: dict[str, dict[str, Any]]
    seed: int = 0
    device: str = "cpu"
    resume_from: str | None = None
    """A validated checkpoint of this very stage to go on from."""
    config_digest: str = ""


class Learner:
    """One rank of a job that goes on training a model; the loop around it decides on what."""

    def __init__(
        self, rank: Rank, settings: Settings, *, stage: str, rate: float, rows_per_rank: int
    ) -> None:
        self.rank, self.settings, self.stage, self.phases = rank, settings, stage, Phases(rank)
        self.step, self.checkpoint, self.held_out_loss = 0, settings.resume_from, float("nan")
        self.known: Mapping[str, Any] = {}
        """What the checkpoint that was resumed remembers."""
        with self.phases("start"):
            self._start(rate, rows_per_rank)

    def _start(self, rate: float, rows_per_rank: int) -> None:
        settings, training = self.settings, self.settings.training
        self.device = engines.join(settings.device, training.timeout_seconds)
        engines.seed_everything(settings.seed)
        self.origin = open_checkpoint(settings.start_from)
        self.engine = engines.start(
            weights_of(self.origin, training.precision),
            rate=rate,
            batch_size_per_rank=rows_per_rank,
            precision=training.precision,
            parallelism=engines.parallelism_of(settings.parallelism),
            weight_decay=training.weight_decay,
            gradient_clip=training.gradient_clip,
            timeout_seconds=training.timeout_seconds,
        )
        if settings.resume_from:
            self._resume(settings.resume_from)
        self.saver = Saver(
            self.engine,
            folder=settings.checkpoints,
            scratch=Path(settings.scratch),
            tokenizer=self.origin.path,
            config=training.checkpoints,
            waits=self.phases,
        )

    def _resume(self, url: str) -> None:
        """Go on from a checkpoint of this stage, if it came from the very weights that are the start now."""
        found = resume(self.engine, url).manifest
        if found.facts.get("started_from") != self.origin.digest:
            raise CheckpointError(
                f"{url} was trained from another checkpoint than {self.settings.start_from}; "
                "pass --set edition=NAME to start anew beside it"
            )
        self.step, self.held_out_loss, self.known = found.step, found.held_out_loss, found.facts
        self.rank.events.write("resume", step=self.step, checkpoint=url)

    def apply(self, loss: torch.Tensor, rate: float) -> float:
        """Move the weights down the gradient of this loss; the gradient's norm over all ranks."""
        with self.phases("backward"):
            self.engine.backward(loss)
        with self.phases("optimizer"):
            norm = engines.step(self.engine, rate=rate)
        self._tell(self.saver.poll())
        return norm

    def save(self, facts: Mapping[str, Any]) -> None:
        """Measure the loss on raw held-out text, for the gates, and publish a checkpoint of all ranks."""
        with self.phases("evaluate"):
            draft = self._draft(facts)
        loss, told = self.held_out_loss, self.rank.events
        told.write("evaluate", step=self.step, held_out_loss=loss, **self.phases.spent("evaluate"))
        with self.phases("checkpoint"):
            self.saver.save(self.engine, draft)
        told.write("save", step=self.step, **self.phases.spent("checkpoint", "flush"))

    def _tell(self, done: list[Saved]) -> None:
        """Saves that have come to an end since the step before."""
        for one in done:
            self.checkpoint = one.url or self.checkpoint
            self.rank.events.write(**one.event())

    def _draft(self, facts: Mapping[str, Any]) -> Manifest:
        settings, training = self.settings, self.settings.training
        fixed = fixed_batch(settings.shards, training.held_out_sequences, settings.model.context_length)
        self.held_out_loss = held_out_loss(self.engine.module, fixed, self.device)
        return Manifest(
            stage=self.stage,
            step=self.step,
            world_size=self.rank.world_size,
            held_out=measured(
                self.held_out_loss,
                sequences=len(fixed),
                sequence_length=settings.model.context_length,
                precision=training.precision,
                device=settings.device,
            ),
            shards=settings.shards,
            shards_digest=datasets.digest(settings.shards),
            config_digest=settings.config_digest,
            code_digest=code_digest(),
            facts={
                "seed": settings.seed,
                "parallelism": settings.parallelism,
                "started_from": self.origin.digest,
                **facts,
            },
        )

    def result(self, **figures: Any) -> dict[str, Any]:
        """What rank 0 leaves, once the last checkpoint is whole."""
        self._tell(self.saver.close())
        self.rank.heartbeat.beat(self.step, "done")
        spent = {name: round(seconds, 3) for name, seconds in self.phases.total.items()}
        return {
            "checkpoint": self.checkpoint,
            "step": self.step,
            "held_out_loss": self.held_out_loss,
            "seconds_by_phase": spent,
            "world_size": self.rank.world_size,
            **figures,
        }


def weights_of(checkpoint: Checkpoint, precision: str) -> Any:
    """The model of a checkpoint whose bytes have been compared with its manifest."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=PRECISIONS[precision])
