"""Before and after on the same held-out prompts: the torchrun target that judges a policy it never trained.

It loads both policies from their checkpoints, so what is measured is what would be deployed. Prompts are
handed out in pieces, and the dice of a piece follow from its number: the number of ranks changes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from components.alignment import comparison, generate, pairs, programs, sequences
from components.alignment.comparison import Outcome
from components.alignment.config import Alignment
from components.alignment.learner import weights_of
from components.alignment.pairs import Pair
from components.alignment.reward import reward
from components.alignment.sft import nll
from components.checkpoints.restore import open_checkpoint
from components.data import tokenizer
from components.jobs import Rank, this_rank
from components.plugins import Config
from components.training import engine as engines
from components.training.model import END_OF_TEXT
from components.training.phases import Phases

ROWS = 64
"""Prompts of one piece."""


class Settings(Config):
    """What the flow asks of this job."""

    pairs: str
    """The file that `pairs.collect` wrote."""
    before: str
    """The checkpoint that training started from: the reference of the divergence."""
    after: str
    """The checkpoint to judge; committed is enough, the judgement is to come."""
    alignment: Alignment = Alignment()
    precision: str = "bf16"
    seed: int = 0
    device: str = "cpu"
    timeout_seconds: float = 900.0


@dataclass(frozen=True)
class Judge:
    """One rank: both policies and everything that is needed to question them."""

    before: Any
    after: Any
    encoder: Any
    settings: Settings
    device: torch.device

    def outcomes(self, policy: Any, asked: Sequence[Pair], piece: int) -> list[Outcome]:
        """What one policy answers to the prompts of a piece."""
        rl = self.settings.alignment.rl
        dice = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + piece)
        samples = generate.sample(
            policy, [pair.prompt_ids for pair in asked], longest=rl.max_new_tokens, generator=dice
        )
        texts = self.encoder.decode_batch([s.ids for s in samples], skip_special_tokens=False)
        written = [[*s.ids, END_OF_TEXT] if s.ended else s.ids for s in samples]
        drifts = self._drift(policy, asked, written)
        human = nll(policy, asked, self.device)
        return [
            Outcome(
                text=text,
                ended=sample.ended,
                tokens=len(sample.logprobs),
                reward=reward(rl.rewards, pair.prompt, text, pair.completion, ended=sample.ended),
                drift=drift,
                human_nats=nats,
                human_tokens=len(pair.completion_ids),
                **_of_program(pair.prompt + text if sample.ended else ""),
            )
            for pair, sample, text, drift, nats in zip(asked, samples, texts, drifts, human, strict=True)
        ]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _drift(self, policy: Any, asked: Sequence[Pair], written: Sequence[Sequence[int]]) -> list[float]:
        """Divergence from the policy before, in nats, summed over each completion."""
        if policy is self.before:
            return [0.0] * len(asked)
        batch = sequences.pack([pair.prompt_ids for pair in asked], written, self.device)
        now, start = sequences.logprobs(policy, batch), sequences.logprobs(self.before, batch)
        found: list[float] = batch.by_row(sequences.divergence(now, start)).tolist()
        return found


def _of_program(text: str) -> dict[str, Any]:
    """What the parser says of a whole text."""
    function = programs.read(text)
    if function is None:
        return {"parses": False, "substance": False, "nodes": 0}
    return {"parses": True, "substance": programs.has_substance(function), "nodes": programs.size(function)}


def figures(rank: Rank, settings: Settings) -> dict[str, Any]:
    """Both policies on the fixed prompts, compared; complete on rank 0."""
    phases = Phases(rank)
    with phases("start"):
        device = engines.join(settings.device, settings.timeout_seconds)
        engines.seed_everything(settings.seed)
        judge = _judge(settings, device)
        asked = pairs.load(settings.pairs, "held_out")[: settings.alignment.evaluation.prompts]
    pieces = [asked[start : start + ROWS] for start in range(0, len(asked), ROWS)]
    ours: dict[str, dict[int, list[Outcome]]] = {"before": {}, "after": {}}
    for number in range(rank.rank, len(pieces), rank.world_size):
        phases.begin(number + 1)
        with phases("evaluate"):
            ours["before"][number] = judge.outcomes(judge.before, pieces[number], number)
            ours["after"][number] = judge.outcomes(judge.after, pieces[number], number)
    before, after = _together(ours, "before"), _together(ours, "after")
    found = comparison.compare(before, after, seed=settings.seed)
    found["samples"] = shown(asked, before, after, settings.alignment.evaluation.samples_shown)
    rank.heartbeat.beat(len(pieces), "done")
    return found | {"prompts": len(asked), "seconds_by_phase": dict(phases.total)}


def shown(
    asked: Sequence[Pair], before: Sequence[Outcome], after: Sequence[Outcome], most: int
) -> list[dict[str, Any]]:
    """Completions of the same prompt side by side, evenly spread over the prompts, not chosen."""
    stride = max(1, len(asked) // max(1, most))
    return [
        {
            "prompt": asked[index].prompt,
            "human": asked[index].completion,
            "before": before[index].text,
            "after": after[index].text,
            "reward_before": before[index].reward,
            "reward_after": after[index].reward,
            "parses_before": before[index].parses,
            "parses_after": after[index].parses,
        }
        for index in range(0, len(asked), stride)[:most]
    ]


def _judge(settings: Settings, device: torch.device) -> Judge:
    """Both checkpoints, verified."""
    before = open_checkpoint(settings.before)
    after = open_checkpoint(settings.after, accept=("committed", "validated"))
    models = [weights_of(one, settings.precision).to(device).eval() for one in (before, after)]
    return Judge(models[0], models[1], tokenizer.load(before.path), settings, device)


def _together(ours: Mapping[str, Mapping[int, list[Outcome]]], name: str) -> list[Outcome]:
    """Every rank's pieces in the order of the prompts."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {n: [asdict(o) for o in got] for n, got in ours[name].items()})
    pieces = {number: got for one in gathered for number, got in one.items()}
    return [Outcome(**content) for number in sorted(pieces) for content in pieces[number]]


def main() -> None:
    """Compare, as `settings.json` of the job's folder says."""
    rank = this_rank()
    found = figures(rank, Settings.model_validate(rank.settings))
    engines.leave()
    rank.finish(found)


if __name__ == "__main__":
    main()
