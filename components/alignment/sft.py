"""Supervised fine-tuning on pairs: the torchrun target. The model learns to answer, and to stop.

Only the body and its end are learned, the prompt is given. Pairs of a batch are alike in length:
padding would otherwise take three fifths of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from components.alignment import pairs, sequences
from components.alignment.learner import Learner, Settings
from components.alignment.pairs import Pair
from components.jobs import Rank, this_rank
from components.training import engine as engines
from components.training.schedule import learning_rate


class Batches:
    """Which pairs a step learns from follows from (seed, step) alone; every epoch mixes them anew."""

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths, self.seed = np.asarray(lengths), seed
        self.batch_size = min(batch_size, len(lengths))
        self.per_epoch = len(lengths) // self.batch_size
        self._epoch, self._batches = -1, np.empty((0, 0), dtype=np.int64)

    def batch(self, step: int) -> list[int]:
        """Indices of the pairs of a step, counted from 0."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._mixed(epoch)
        return [int(index) for index in self._batches[place]]

    def _mixed(self, epoch: int) -> Any:
        """[batches, batch size]: by length with some jitter, cut, the batches in random order."""
        generator = np.random.default_rng([self.seed, epoch])
        order = np.argsort(self.lengths * (0.9 + 0.2 * generator.random(len(self.lengths))))
        dropped = generator.integers(0, len(order) % self.batch_size + 1)
        whole = order[dropped : dropped + self.per_epoch * self.batch_size]
        cut = whole.reshape(self.per_epoch, self.batch_size)
        return cut[np.argsort(generator.random(self.per_epoch))]


class Tuner:
    """One rank of the job."""

    def __init__(self, rank: Rank, settings: Settings) -> None:
        self.sft, self.rank = settings.alignment.sft, rank
        self.learner = Learner(
            rank,
            settings,
            stage="sft",
            rate=self.sft.learning_rate,
            rows_per_rank=self.sft.batch_size // rank.world_size,
        )
        self.pairs = pairs.load(settings.pairs, "train")
        self.held_out = pairs.load(settings.pairs, "held_out")[: settings.alignment.evaluation.prompts]
        lengths = [len(pair.prompt_ids) + len(pair.completion_ids) for pair in self.pairs]
        self.batches = Batches(lengths, self.sft.batch_size, settings.seed)
        self.loss = float(self.learner.known.get("loss", "nan"))

    def run(self) -> dict[str, Any]:
        """Every step that is left."""
        learner = self.learner
        before = nll_per_token(learner.engine.module, self.held_out, learner.device)
        while learner.step < self.sft.steps:
            learner.phases.begin(learner.step + 1)
            self._update()
            learner.step += 1
            if learner.step == self.sft.steps or learner.step % self.sft.checkpoint_every == 0:
                learner.save({"loss": self.loss})
        after = nll_per_token(learner.engine.module, self.held_out, learner.device)
        return learner.result(
            loss_last=self.loss,
            pairs=len(self.pairs),
            held_out_pairs=len(self.held_out),
            body_nll_before=before,
            body_nll_after=after,
        )

    def _update(self) -> None:
        """One step on one global batch, of which this rank has every n-th pair."""
        learner, ranks, step = self.learner, self.rank.world_size, self.learner.step
        with learner.phases("data"):
            chosen = [self.pairs[index] for index in self.batches.batch(step)]
            tokens = sum(len(pair.completion_ids) for pair in chosen)
            ours = chosen[self.rank.rank :: ranks]
        with learner.phases("forward"):
            loss = summed_nll(learner.engine, ours, learner.device).sum() * ranks / tokens
        rate = learning_rate(
            step + 1,
            steps=self.sft.steps,
            peak=self.sft.learning_rate,
            warmup=min(self.sft.warmup_steps, self.sft.steps - 1),
            shape="linear",
        )
        norm = learner.apply(loss, rate)
        self.loss = engines.mean_over_ranks(float(loss.item()))
        self.rank.events.write(
            "step",
            step=step + 1,
            loss=self.loss,
            gradient_norm=norm,
            learning_rate=rate,
            tokens=tokens,
            **learner.phases.spent(),
        )


def summed_nll(model: Any, chosen: Sequence[Pair], device: torch.device) -> torch.Tensor:
    """Nats of each completion, its end included, the prompt given: [pairs]."""
    batch = sequences.pack([p.prompt_ids for p in chosen], [p.completion_ids for p in chosen], device)
    return -batch.by_row(sequences.of_chosen(sequences.logprobs(model, batch), batch))


def nll(model: Any, chosen: Sequence[Pair], device: torch.device, rows: int = 64) -> list[float]:
    """Nats of each human body, its end included."""
    with torch.no_grad():
        pieces = [chosen[start : start + rows] for start in range(0, len(chosen), rows)]
        return [nats for piece in pieces for nats in summed_nll(model, piece, device).tolist()]


def nll_per_token(model: Any, chosen: Sequence[Pair], device: torch.device) -> float:
    """Nats a token of human bodies."""
    return sum(nll(model, chosen, device)) / sum(len(pair.completion_ids) for pair in chosen)


def main() -> None:
    """Tune, as `settings.json` of the job's folder says."""
    rank = this_rank()
    result = Tuner(rank, Settings.model_validate(rank.settings)).run()
    engines.leave()
    rank.finish(result)


if __name__ == "__main__":
    main()
