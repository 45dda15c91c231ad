"""Prompt and completion as one tensor, completions from the same column on; what models say of them.

column   0 .. prompt width          .. completion width
row      pad pad def f ( a ) :      body ... end pad pad
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
    """[rows, prompt width + completion width]"""
    attention: torch.Tensor
    """1 where a token is, 0 on padding."""
    written: torch.Tensor
    """[rows, completion width]: True on the tokens of the completion, its end included."""

    @property
    def completion(self) -> torch.Tensor:
        """Token ids of the completions, [rows, completion width]."""
        return self.ids[:, -self.written.shape[1] :]

    @property
    def positions(self) -> torch.Tensor:
        """Position of each token in its own row."""
        return (self.attention.cumsum(1) - 1).clamp(min=0)


def pack(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], device: torch.device
) -> Sequences:
    """Prompts padded on the left, completions on the right."""
    left = max(len(prompt) for prompt in prompts)
    right = max(len(completion) for completion in completions)
    ids = torch.full((len(prompts), left + right), END_OF_TEXT)
    attention = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        whole = torch.tensor([*prompt, *completion])
        start = left - len(prompt)
        ids[row, start : start + len(whole)] = whole
        attention[row, start : start + len(whole)] = 1
    return Sequences(ids.to(device), attention.to(device), attention[:, left:].bool().to(device))


def logprobs(model: Any, batch: Sequences) -> torch.Tensor:
    """Log-probabilities of every next token of the completions, [rows, completion width, vocabulary]."""
    output = model(
        input_ids=batch.ids,
        attention_mask=batch.attention,
        position_ids=batch.positions,
        use_cache=False,
        logits_to_keep=batch.written.shape[1] + 1,
    )
    found: torch.Tensor = output.logits[:, :-1].float().log_softmax(-1)
    return found


def of_chosen(logprobs: torch.Tensor, batch: Sequences) -> torch.Tensor:
    """Log-probability of each token that stands there, [rows, completion width]."""
    return logprobs.gather(2, batch.completion[:, :, None])[:, :, 0]


def divergence(policy: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """KL(policy || start) over the whole vocabulary at each token, in nats, [rows, completion width]."""
    return (policy.exp() * (policy - start)).sum(-1)


def entropy(policy: torch.Tensor) -> torch.Tensor:
    """Entropy of the policy at each token, in nats, [rows, completion width]."""
    return -(policy.exp() * policy).sum(-1)
