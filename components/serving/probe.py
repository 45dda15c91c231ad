"""Putting the trainer's questions to a server and counting where it answers differently.

Pattern: Readiness by Known Answers
Problem: a server with wrong weights, tokenizer or precision looks as green as a right one; it answers worse.
Answer: it is ready when it gives the trainer's own answers, token by token, and its log-probabilities.
Trade-off: the trainer's model must be loaded once a deployment, and a changed kernel may fall off a tie.
"""

from __future__ import annotations

from typing import Any

from components.serving import client
from components.serving.reference import Answer

TIES = {"fp32": 1e-4, "bf16": 0.1}
"""Nats within which two candidates count as equal: rounding decides which one is chosen."""


def probe(url: str, model: str, known: list[Answer], *, precision: str) -> dict[str, dict[str, Any]]:
    """Figures `answers` and `logprobs` for the gates of the same subjects."""
    differences = [_difference(url, model, answer, TIES[precision]) for answer in known]
    different = [difference for difference in differences if difference]
    gaps = [gap for answer in known for gap in _gaps(url, model, answer)]
    return {
        "answers": {
            "asked": len(known),
            "known": len(known) - len(different),
            "tokens": sum(len(answer.token_ids) for answer in known),
            "first_difference": different[0] if different else None,
        },
        "logprobs": {
            "tokens": len(gaps),
            "mean_difference": sum(gaps) / len(gaps) if gaps else None,
            "max_difference": max(gaps, default=None),
            "precision": precision,
        },
    }


def _difference(url: str, model: str, answer: Answer, tie: float) -> str | None:
    """Where the server leaves the trainer's answer, or None; after a tie both ways are right."""
    given = client.complete(url, model, answer.prompt, tokens=len(answer.token_ids))
    if given.prompt_ids != answer.prompt_ids:
        return f"prompt {answer.prompt!r} is other tokens: {given.prompt_ids} for {answer.prompt_ids}"
    for position, (expected, margin) in enumerate(zip(answer.token_ids, answer.margins, strict=True)):
        if position >= len(given.token_ids):
            return f"prompt {answer.prompt!r} got {position} tokens for {len(answer.token_ids)}"
        if given.token_ids[position] != expected:
            where = f"prompt {answer.prompt!r}, token {position}"
            return None if margin < tie else f"{where}: {given.token_ids[position]} for {expected}"
    return None


def _gaps(url: str, model: str, answer: Answer) -> list[float]:
    """Absolute difference of the log-probability of each token of prompt and answer."""
    text = answer.prompt_ids + answer.token_ids
    given = client.complete(url, model, text, with_logprobs=True).prompt_logprobs
    return [abs(ours - theirs) for ours, theirs in zip(given, answer.logprobs, strict=True)]
