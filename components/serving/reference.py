"""What the trainer's own model says: the answers and log-probabilities that a server must reproduce.

Computed by transformers in fp32 from the checkpoint itself, not from the release, so that an export that went
wrong cannot vouch for itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """One prompt and its greedy answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str
    prompt_ids: list[int]
    token_ids: list[int]
    margins: list[float]
    """How far each chosen token was ahead of the second, in nats: a tie may fall either way."""
    logprobs: list[float]
    """Natural log-probability of every token of prompt and answer but the first."""


def ask_trainer(checkpoint: Path, prompts: tuple[str, ...], tokens: int) -> list[Answer]:
    """The greedy answer of `tokens` tokens to every prompt."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [_answer(model, prompt, tokenizer.encode(prompt).ids, tokens) for prompt in prompts]


def _answer(model: Any, prompt: str, prompt_ids: list[int], tokens: int) -> Answer:
    import torch

    ids, margins = list(prompt_ids), []
    for _ in range(tokens):
        best = _logprobs(model, ids)[-1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    given = _logprobs(model, ids)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    return Answer(
        prompt=prompt,
        prompt_ids=prompt_ids,
        token_ids=ids[len(prompt_ids) :],
        margins=margins,
        logprobs=given.tolist(),
    )


def _logprobs(model: Any, ids: list[int]) -> Any:
    """[positions, vocabulary]"""
    import torch

    return model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
