"""Completions of many prompts at once, with a key-value cache; rows that have ended leave the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from components.training.model import END_OF_TEXT


@dataclass
class Sample:
    """One completion as the model chose it."""

    ids: list[int]
    """Token ids, the end-of-text id not among them."""
    logprobs: list[float]
    """Natural log-probability of every choice, that of ending included."""
    ended: bool = False
    """Whether the model ended by itself within the limit."""


@torch.inference_mode()  # type: ignore[untyped-decorator]
def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    longest: int,
    generator: torch.Generator,
    temperature: float = 1.0,
) -> list[Sample]:
    """One completion of at most `longest` tokens, end included, for each prompt."""
    samples = [Sample([], []) for _ in prompts]
    rows = torch.arange(len(prompts))
    ids, mask = _padded_left(prompts)
    ids, mask = ids.to(model.device), mask.to(model.device)
    positions, cache = (mask.cumsum(1) - 1).clamp(min=0), None
    for _ in range(longest):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        logprobs = (output.logits[:, -1].float() / temperature).log_softmax(-1).cpu()
        chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
        _append(samples, rows, chosen[:, 0], logprobs.gather(1, chosen)[:, 0])
        alive = (chosen[:, 0] != END_OF_TEXT).nonzero()[:, 0]
        if len(alive) == 0:
            break
        rows, kept = rows[alive], alive.to(model.device)
        ids, positions = chosen.to(model.device)[kept], positions[kept, -1:] + 1
        mask = torch.cat([mask[kept], mask.new_ones(len(kept), 1)], 1)
        if len(kept) < len(output.logits):
            cache.batch_select_indices(kept)
    return samples


def _padded_left(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, each prompt ending in the last column."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), END_OF_TEXT)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def _append(
    samples: Sequence[Sample], rows: torch.Tensor, chosen: torch.Tensor, logprobs: torch.Tensor
) -> None:
    for row, token, logprob in zip(rows.tolist(), chosen.tolist(), logprobs.tolist(), strict=True):
        samples[row].logprobs.append(logprob)
        if token == END_OF_TEXT:
            samples[row].ended = True
        else:
            samples[row].ids.append(token)
