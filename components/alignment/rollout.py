"""What a policy wrote in one step and what it was worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from components.alignment.generate import Sample
from components.alignment.pairs import Pair
from components.alignment.programs import read
from components.training.model import END_OF_TEXT


@dataclass
class Rollout:
    """What this rank wrote in one step and what it was worth."""

    prompts: list[Pair]
    """One a sample: each prompt as often as it was answered."""
    samples: list[Sample]
    texts: list[str]
    rewards: list[float]
    samples_per_prompt: int

    @property
    def completions(self) -> list[list[int]]:
        """Token ids, the end among them where it was chosen."""
        return [[*s.ids, END_OF_TEXT] if s.ended else s.ids for s in self.samples]

    def figures(self) -> dict[str, float]:
        """Shares and means over the samples."""
        together = zip(self.prompts, self.texts, self.samples, strict=True)
        parsed = [s.ended and read(pair.prompt + text) is not None for pair, text, s in together]
        return {
            "reward": float(np.mean(self.rewards)),
            "parse_share": float(np.mean(parsed)),
            "ended_share": float(np.mean([s.ended for s in self.samples])),
            "distinct_share": len(set(self.texts)) / len(self.texts),
            "length": float(np.mean([len(s.logprobs) for s in self.samples])),
            "silent_share": self.silent_share(),
        }

    def silent_share(self) -> float:
        """Share of the prompts whose samples are all worth the same: they teach nothing."""
        groups = np.reshape(self.rewards, (-1, self.samples_per_prompt))
        return float(np.mean(np.ptp(groups, axis=1) == 0))
