"""Reinforcement learning with a verifiable reward: the torchrun target. Write, score, learn, again.

REINFORCE with a leave-one-out baseline (RLOO), one update a rollout, so the policy that learns is the policy
that wrote. Losses are divided by a constant, not by lengths, which would reward long failures (Dr. GRPO).
The divergence from the SFT policy is computed over the whole vocabulary, not estimated from the samples.

Pattern: KL Budget
Problem: a policy that is only paid forgets the language it was paid to write: reward rises, text dies.
Answer: every nat of divergence from the start has a price, and a gate bounds what was spent.
Trade-off: the reward rises more slowly, and a second copy of the model reads every sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from components.alignment import generate, pairs, sequences
from components.alignment.learner import Learner, Settings, weights_of
from components.alignment.pairs import Pair
from components.alignment.reward import advantages, reward
from components.alignment.rollout import Rollout
from components.data import tokenizer
from components.errors import ConfigError
from components.jobs import Rank, this_rank
from components.training import engine as engines
from components.training.schedule import learning_rate

PIECE_ROWS = 16
"""Rows of one forward pass."""


class Policy:
    """One rank of the job."""

    def __init__(self, rank: Rank, settings: Settings) -> None:
        self.rl, self.rank, self.seed = settings.alignment.rl, rank, settings.seed
        _whole_weights(settings)
        self.rows = self.rl.prompts_per_step // rank.world_size * self.rl.samples_per_prompt
        self.learner = Learner(
            rank, settings, stage="rl", rate=self.rl.learning_rate, rows_per_rank=self.rows
        )
        self.start = weights_of(self.learner.origin, settings.training.precision).to(self.learner.device)
        self.start.requires_grad_(False)
        self.pairs = pairs.load(settings.pairs, "train")
        self.encoder = tokenizer.load(self.learner.origin.path)
        self.last: dict[str, float] = dict(self.learner.known.get("update", {}))

    def run(self) -> dict[str, Any]:
        """Every update that is left."""
        learner = self.learner
        while learner.step < self.rl.steps:
            learner.phases.begin(learner.step + 1)
            self._update()
            learner.step += 1
            if learner.step == self.rl.steps or learner.step % self.rl.checkpoint_every == 0:
                learner.save({"update": self.last})
        return learner.result(last_update=self.last)

    def _update(self) -> None:
        """Write, score, learn once."""
        learner, step = self.learner, self.learner.step + 1
        rollout = self._write(step)
        with learner.phases("forward"):
            loss, drift = self._loss(rollout)
        rate = learning_rate(
            step,
            steps=self.rl.steps,
            peak=self.rl.learning_rate,
            warmup=self.rl.warmup_steps,
            shape="constant",
        )
        norm = learner.apply(loss, rate)
        figures = rollout.figures() | drift
        self.last = {name: engines.mean_over_ranks(value) for name, value in figures.items()}
        self.rank.events.write(
            "update",
            step=step,
            **self.last,
            gradient_norm=norm,
            learning_rate=rate,
            **learner.phases.spent(),
        )

    def _write(self, step: int) -> Rollout:
        """Several completions of each of this rank's prompts; prompts and dice follow from the step."""
        ours = self._prompts(step)[self.rank.rank :: self.rank.world_size]
        asked = [pair for pair in ours for _ in range(self.rl.samples_per_prompt)]
        dice = torch.Generator().manual_seed(_seed(self.seed, step, self.rank.rank))
        module = self.learner.engine.module
        with self.learner.phases("rollout"):
            samples = generate.sample(
                module, [pair.prompt_ids for pair in asked], longest=self.rl.max_new_tokens, generator=dice
            )
        with self.learner.phases("data"):
            texts = self.encoder.decode_batch([s.ids for s in samples], skip_special_tokens=False)
            together = zip(asked, texts, samples, strict=True)
            paid = [
                reward(self.rl.rewards, pair.prompt, text, pair.completion, ended=sample.ended)
                for pair, text, sample in together
            ]
        return Rollout(asked, samples, texts, paid, self.rl.samples_per_prompt)

    def _prompts(self, step: int) -> list[Pair]:
        """The prompts of a step: a new order of all pairs each epoch."""
        count = min(self.rl.prompts_per_step, len(self.pairs))
        per_epoch = len(self.pairs) // count
        epoch, place = divmod(step - 1, per_epoch)
        order = np.argsort(np.random.default_rng([self.seed, epoch]).random(len(self.pairs)))
        return [self.pairs[index] for index in order[place * count : (place + 1) * count]]

    def _loss(self, rollout: Rollout) -> tuple[torch.Tensor, dict[str, float]]:
        """Policy gradient plus the price of divergence; and how far the policy has moved, per token."""
        better = advantages(rollout.rewards, self.rl.samples_per_prompt)
        total = torch.zeros((), device=self.learner.device)
        sums = dict.fromkeys(("kl", "entropy", "rollout_gap"), 0.0)
        for piece in _alike(rollout, PIECE_ROWS):
            batch = sequences.pack(
                [rollout.prompts[row].prompt_ids for row in piece],
                [rollout.completions[row] for row in piece],
                self.learner.device,
            )
            with torch.no_grad():
                start = sequences.logprobs(self.start, batch)
            policy = sequences.logprobs(self.learner.engine, batch)
            chosen, drift = sequences.of_chosen(policy, batch), sequences.divergence(policy, start)
            worth = torch.tensor([better[row] for row in piece], device=chosen.device)[batch.rows]
            total = total - (worth * chosen - self.rl.kl_weight * drift).sum()
            said = torch.tensor([logprob for row in piece for logprob in rollout.samples[row].logprobs])
            sums["kl"] += float(drift.sum())
            sums["entropy"] += float(sequences.entropy(policy.detach()).sum())
            sums["rollout_gap"] += float((chosen.detach().cpu() - said).abs().sum())
        tokens = sum(len(sample.logprobs) for sample in rollout.samples)
        rows = len(rollout.prompts)
        return total / (rows * self.rl.max_new_tokens), {name: sums[name] / tokens for name in sums}


def _alike(rollout: Rollout, rows: int) -> list[list[int]]:
    """Rows in pieces of like length, so that little is padding."""
    lengths = [
        len(pair.prompt_ids) + len(sample.logprobs)
        for pair, sample in zip(rollout.prompts, rollout.samples, strict=True)
    ]
    order = [int(row) for row in np.argsort(lengths, kind="stable")]
    return [order[start : start + rows] for start in range(0, len(order), rows)]


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)


def _whole_weights(settings: Settings) -> None:
    """Ranks write at their own pace, and under ZeRO 3 every word would need all of them."""
    if int(settings.parallelism.get("zero", {}).get("stage", 0)) == 3:
        raise ConfigError(
            "parallelism.zero.stage=3 splits the weights and each rank generates alone; "
            "pass --set parallelism.zero.stage=2"
        )


def main() -> None:
    """Align, as `settings.json` of the job's folder says."""
    rank = this_rank()
    result = Policy(rank, Settings.model_validate(rank.settings)).run()
    engines.leave()
    rank.finish(result)


if __name__ == "__main__":
    main()
