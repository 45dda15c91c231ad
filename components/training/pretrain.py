"""Pre-training on token shards: the torchrun target, one process a rank.

Everything that a step depends on is its number: the batch, the learning rate, the state that was saved. So a
job that resumes at step n goes on exactly as the one that was interrupted.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from components.checkpoints.interval import Interval, mtbf_seconds, nodes_of
from components.checkpoints.manifest import HeldOut, Manifest
from components.checkpoints.resume import resume
from components.checkpoints.save import Saved, Saver
from components.data import tokenizer
from components.data.left_out import Ranges
from components.data.stream import fixed_batch
from components.errors import TrainingError
from components.jobs import Rank, this_rank
from components.observability.provenance import code_digest
from components.plugins import Config
from components.reliability.faults import inject
from components.reliability.preemption import Config as Preemption
from components.reliability.preemption import Listener
from components.training import engine as engines
from components.training import gradients, replicas
from components.training import model as models
from components.training.batch_loss import batch_losses, weighted
from components.training.config import Model, Training
from components.training.evaluate import held_out_loss, measured
from components.training.feed import Feed
from components.training.guard import Guard, Refusal
from components.training.phases import Phases
from components.training.readout import Readout, peak_resident_bytes
from components.training.schedule import learning_rate

TRAINED = ("data", "forward", "backward", "optimizer")
"""Phases that move training on."""


class Settings(Config):
    """What the flow asks of this job."""

    shards: str
    """The data set's folder."""
    checkpoints: str
    """Folder under which checkpoints are published."""
    scratch: str
    """Local folder that all ranks see, for what is being written."""
    model: Model = Model()
    training: Training = Training()
    parallelism: dict[str, dict[str, Any]]
    seed: int = 0
    device: str = "cpu"
    resume_from: str | None = None
    """A validated checkpoint to go on from."""
    left_out: Ranges = ()
    """Batches not to train on, beside those that the checkpoint leaves out."""
    config_digest: str = ""
    preemption: Preemption = Preemption()


class Trainer:
    """One rank of the job."""

    def __init__(self, rank: Rank, settings: Settings) -> None:
        self.rank, self.settings, self.phases = rank, settings, Phases(rank)
        self.step, self.first_step, self.losses = 0, 0, [0.0]
        self.tokens_before = 0
        self.checkpoint: str | None = None
        self.chosen_interval: dict[str, float] = {}
        self.held_out: HeldOut | None = None
        self.notices, self.parts = Listener(rank, settings.preemption), False
        with self.phases("start"):
            self._start()

    def _start(self) -> None:
        """Data, model, engine; and where an earlier attempt left off."""
        settings, training = self.settings, self.settings.training
        batch_size_per_rank = training.batch_size_per_rank(self.rank.world_size)
        length = settings.model.context_length
        self.feed = Feed(
            self.rank,
            settings.shards,
            training,
            sequence_length=length,
            seed=settings.seed,
            left_out=settings.left_out,
        )
        self.data = self.feed.reader.manifest
        self.tokenizer = Path(settings.scratch) / "tokenizer"
        if self.rank.rank == 0:
            tokenizer.fetch(settings.shards, self.data, self.tokenizer)
        self.fixed = fixed_batch(settings.shards, training.held_out_sequences, length)
        self.device = engines.join(settings.device, training.timeout_seconds)
        engines.seed_everything(settings.seed)
        model = models.build(settings.model, self.data.vocab_size, models.PRECISIONS[training.precision])
        self.parameters = models.parameters(model)
        self.engine = engines.start(
            model,
            rate=training.learning_rate,
            batch_size_per_rank=batch_size_per_rank,
            precision=training.precision,
            parallelism=engines.parallelism_of(settings.parallelism),
            weight_decay=training.weight_decay,
            gradient_clip=training.gradient_clip,
            timeout_seconds=training.timeout_seconds,
        )
        self.own_gradient = gradients.OwnGradient(self.engine)
        self.guard = Guard(training.gradients)
        if settings.resume_from:
            self._resume(settings.resume_from)
        self.readout = Readout(
            self.phases,
            settings.model,
            parameters=self.parameters,
            vocab_size=self.data.vocab_size,
            device=self.device,
            precision=training.precision,
        )
        self.saver = Saver(
            self.engine,
            folder=settings.checkpoints,
            scratch=Path(settings.scratch),
            tokenizer=self.tokenizer,
            config=training.checkpoints,
            waits=self.phases,
        )
        rate = training.checkpoints.failures_per_1000_node_days
        self.interval = Interval(
            training.checkpoint_every, mtbf_seconds(rate, nodes_of(self.rank.world_size))
        )
        self.interval.start(self.step)

    def _resume(self, url: str) -> None:
        """Go on from a checkpoint that was trained on the very order of samples that comes now."""
        scratch = Path(self.settings.scratch)
        found = resume(self.engine, url, reads=self.feed.position, scratch=scratch).manifest
        assert found.data_position is not None, "resume refuses a checkpoint without one"
        self.feed.start(found.data_position, found.facts["tokens_seen"])
        self.step = self.first_step = found.step
        self.tokens_before = self.feed.tokens_seen
        self.checkpoint, self.held_out = url, found.held_out
        self.losses = [float(found.facts["loss"])]
        self.guard = Guard(self.settings.training.gradients, **found.facts.get("gradients", {}))
        self.rank.events.write("resume", step=self.step, checkpoint=url)

    def run(self) -> dict[str, Any]:
        """Every step that is left, or those until a notice; the result that rank 0 leaves."""
        training, started = self.settings.training, time.perf_counter()
        while self.step < training.steps and not self.parts:
            self.phases.begin(self.step + 1)
            self._update()
            self.step += 1
            self._tell(self.saver.poll())
            save = self.step == training.steps or self.parts or self.interval.due(self.step)
            if save or self.step % training.compare_replicas_every == 0:
                self._compare()
            if save or self.step % training.evaluate_every == 0:
                self._evaluate()
            if save:
                self._save()
        self._tell(self.saver.close())
        self.rank.heartbeat.beat(self.step, "done")
        self.feed.close()
        return self._result(time.perf_counter() - started)

    def leave(self, result: dict[str, Any]) -> None:
        """The result; or, after a notice, the checkpoint to go on from."""
        if self.parts and self.step < self.settings.training.steps:
            self.notices.hand_over(self.step, result["checkpoint"])
        else:
            self.rank.finish(result)

    def _update(self) -> None:
        """One optimizer step on one global batch."""
        training, ranks, step = self.settings.training, self.rank.world_size, self.step + 1
        with self.phases("data"):
            fed = self.feed.next()
            inject(self.rank.rank, fed.number + 1, "batch", fed.batch)  # bad data comes with its batch
        with self.phases("forward"):
            losses = batch_losses(self.engine, fed.batch, self.device, training.packing)
            even = not self.feed.uneven
            loss = losses.mean() if even else weighted(losses, world_size=ranks, targets=fed.targets)
        with self.phases("backward"):
            self.engine.backward(loss)
            self._drill("gradient", self.engine)
            self._drill("collective", self.engine)
        with self.phases("optimizer"):
            rate = learning_rate(
                step,
                steps=training.steps,
                peak=training.learning_rate,
                warmup=int(training.warmup_share * training.steps),
            )
            mine = float(loss.item()), float(self.notices.heard())
            norms, (total, heard) = gradients.measure(self.engine, self.own_gradient, *mine)
            refusal = self.guard.judge(norms, sharded=gradients.is_sharded(self.engine))
            if refusal is None:
                engines.step(self.engine, rate=rate)
            else:
                self._skip(refusal)
            self._drill("replica", self.engine)
        mean, self.parts = total / ranks, heard > 0  # the same on all ranks, so all part at this step
        self.losses.append(mean)
        self.rank.events.write(
            "step",
            step=step,
            batch=fed.number,
            loss=mean,
            gradient_norm=self.guard.norm,
            learning_rate=rate,
            **self.readout.of_step(fed.tokens),
        )

    def _skip(self, refusal: Refusal) -> None:
        """A step that leaves everything as it was; too many in a row, and the attempt ends, on all ranks."""
        gradients.leave_out(self.engine)
        told = {"reason": refusal.reason, "culprit": refusal.rank, "figures": refusal.figures}
        self.rank.events.write("skipped_step", step=self.step + 1, **told)
        if self.guard.at_its_end:
            whose = "all ranks" if refusal.rank is None else f"rank {refusal.rank}"
            raise TrainingError(
                f"{self.guard.skipped} steps in a row had a bad gradient, the last of {whose} in step "
                f"{self.step + 1}: {refusal.reason}; look at its batches, or take that rank's device out"
            )

    def _compare(self) -> None:
        """End the attempt when ranks that should hold the same do not: what one of them saves is no use."""
        with self.phases("optimizer"):
            divergence = replicas.compare(self.engine)
        if divergence is not None:
            self.rank.events.write("replica_divergence", step=self.step, **divergence.told)
            raise TrainingError(f"step {self.step}: {divergence}; go back to the last checkpoint")

    def _drill(self, point: str, held: Any) -> None:
        """Where a drill may break what this rank holds, in the time of the phase that it is in."""
        inject(self.rank.rank, self.step + 1, point, held)

    def _evaluate(self) -> None:
        """The loss of the weights as they are now, on the batch that every gate will use."""
        training = self.settings.training
        with self.phases("evaluate"):
            loss = held_out_loss(self.engine.module, self.fixed, self.device)
        self.held_out = measured(
            loss,
            sequences=len(self.fixed),
            sequence_length=self.settings.model.context_length,
            precision=training.precision,
            device=self.settings.device,
        )
        self.rank.events.write(
            "evaluate", step=self.step, held_out_loss=loss, **self.phases.spent("evaluate")
        )

    def _save(self) -> None:
        """A checkpoint of all ranks."""
        settings, held_out = self.settings, self.held_out
        assert held_out is not None, "evaluated before every save"
        draft = Manifest(
            stage="pretrain",
            step=self.step,
            data_position=self.feed.position,
            world_size=self.rank.world_size,
            held_out=held_out,
            shards=settings.shards,
            shards_digest=self.feed.reader.digest,
            config_digest=settings.config_digest,
            code_digest=code_digest(),
            facts={
                "seed": settings.seed,
                "parallelism": settings.parallelism,
                "loss": self.losses[-1],
                "tokens_seen": self.feed.tokens_seen,
                "gradients": self.guard.state,
            },
        )
        with self.phases("checkpoint"):
            before = self.saver.save(self.engine, draft)
        self.rank.events.write("save", step=self.step, **self.phases.spent("checkpoint", "flush"))
        self._tell(self.saver.poll())
        if self.interval.every == "auto":
            self._choose_interval(before)

    def _choose_interval(self, saved: Saved | None) -> None:
        """From what all ranks measured of a save that all have done with: how many steps until the next."""
        if saved is None:
            self.interval.start(self.step)
            return
        busy = sum(self.phases.total[name] for name in TRAINED) / (self.step - self.first_step)
        sums = engines.sums_over_ranks(busy, saved.stalled, saved.seconds)
        step_seconds, cost, seconds = (total / self.rank.world_size for total in sums)
        if told := self.interval.saved(self.step, step_seconds=step_seconds, cost=cost, seconds=seconds):
            self.rank.events.write("interval", step=self.step, **told)
            self.chosen_interval = told

    def _tell(self, done: list[Saved]) -> None:
        """Saves that have come to an end since the step before."""
        for one in done:
            self.checkpoint = one.url or self.checkpoint
            self.rank.events.write(**one.event())

    def _result(self, seconds: float) -> dict[str, Any]:
        trained = {name: self.phases.total[name] for name in TRAINED}
        busy = max(sum(trained.values()), 1e-9)
        return {
            "checkpoint": self.checkpoint,
            "checkpoint_interval": self.chosen_interval,
            "step": self.step,
            "first_step": self.first_step,
            "loss_last": self.losses[-1],
            "held_out_loss": self.held_out.loss if self.held_out else None,
            "unigram_cross_entropy": self.data.unigram_cross_entropy,
            "tokens_per_second": (self.feed.tokens_seen - self.tokens_before) / busy,
            "data_share": trained["data"] / busy,
            **self.feed.figures(),
            "seconds": seconds,
            "seconds_by_phase": {name: round(spent, 3) for name, spent in self.phases.total.items()},
            "parameters": self.parameters,
            "world_size": self.rank.world_size,
            "peak_rss_bytes": peak_resident_bytes(),
        }


def main() -> None:
    """Train, as `settings.json` of the job's folder says."""
    rank = this_rank()
    trainer = Trainer(rank, Settings.model_validate(rank.settings))
    result = trainer.run()
    engines.leave()
    trainer.leave(result)


if __name__ == "__main__":
    main()
