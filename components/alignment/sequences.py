"""Prompts with their completions as one tensor, and what a model says of the tokens that were written.

Rows are padded on the right, where causal attention never looks, so no mask is needed. What is computed of
the written tokens is flat, [tokens, ...]: prompts and padding cost nothing beyond the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from components.training.model import END_OF_TEXT


@dataclass(frozen=True)
class Sequences:
    """A batch of prompts with their completions."""

    ids: torch.Tensor
    """[rows, width]"""
    written: torch.Tensor
    """[rows, width - 1]: True where the next token belongs to the completion."""

    @property
    def targets(self) -> torch.Tensor:
        """The written tokens, row by row: [tokens]."""
        return self.ids[:, 1:][self.written]

    @property
    def rows(self) -> torch.Tensor:
        """The row of each written token: [tokens]."""
        return self.written.nonzero()[:, 0]

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Sums of what was computed for each written token: [rows]."""
        return values.new_zeros(len(self.ids)).index_add(0, self.rows, values)


def pack(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], device: torch.device
) -> Sequences:
    """One row for each prompt with its completion, an end chosen by the model included."""
    together = list(zip(prompts, completions, strict=True))
    width = max(len(prompt) + len(completion) for prompt, completion in together)
    ids = torch.full((len(together), width), END_OF_TEXT)
    written = torch.zeros(len(together), width - 1, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(together):
        end = len(prompt) + len(completion)
        ids[row, :end] = torch.tensor([*prompt, *completion])
        written[row, len(prompt) - 1 : end - 1] = True
    return Sequences(ids.to(device), written.to(device))


def logprobs(model: Any, batch: Sequences) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary at every written token: [tokens, vocabulary]."""
    logits = model(input_ids=batch.ids, use_cache=False).logits[:, :-1]
    found: torch.Tensor = logits[batch.written].float().log_softmax(-1)
    return found


def of_chosen(logprobs: torch.Tensor, batch: Sequences) -> torch.Tensor:
    """Log-probability of each written token: [tokens]."""
    return logprobs.gather(1, batch.targets[:, None])[:, 0]


def divergence(policy: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """KL(policy || start) over the whole vocabulary, in nats: [tokens]."""
    return (policy.exp() * (policy - start)).sum(-1)


def entropy(policy: torch.Tensor) -> torch.Tensor:
    """Entropy of the policy, in nats: [tokens]."""
    return -(policy.exp() * policy).sum(-1)
