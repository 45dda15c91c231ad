"""Asking a running server: a few plain HTTP calls of its OpenAI-compatible interface."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

import httpx

STEPS = re.compile(r"^vllm:iteration_tokens_total_count(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Completion:
    """One answer, in tokens."""

    text: str
    prompt_ids: list[int]
    token_ids: list[int]
    prompt_logprobs: list[float]
    """Natural log-probability of every prompt token but the first; empty unless asked for."""


def complete(
    url: str,
    model: str,
    prompt: str | list[int],
    *,
    tokens: int = 1,
    with_logprobs: bool = False,
    timeout_seconds: float = 60.0,
) -> Completion:
    """The greedy answer of exactly `tokens` tokens."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    if with_logprobs:
        body["prompt_logprobs"] = 0
    with _client(timeout_seconds) as client:
        answer = client.post(f"{url}/v1/completions", json=body)
    answer.raise_for_status()
    choice = answer.json()["choices"][0]
    ids = choice["prompt_token_ids"]
    given = choice.get("prompt_logprobs") or [None]
    logprobs = [float(of[str(i)]["logprob"]) for i, of in zip(ids, given, strict=False) if of]
    return Completion(choice["text"], ids, choice["token_ids"], logprobs)


def is_listening(url: str, timeout_seconds: float = 2.0) -> bool:
    """Whether the HTTP side answers; says nothing about the engine behind it."""
    try:
        with _client(timeout_seconds) as client:
            return client.get(f"{url}/health").is_success
    except httpx.HTTPError:
        return False


def steps(url: str, timeout_seconds: float = 5.0) -> int:
    """Engine steps since the start, from the server's metrics."""
    with _client(timeout_seconds) as client:
        found = STEPS.search(client.get(f"{url}/metrics").text)
    return int(float(found[1])) if found else 0


def curl_example(url: str, model: str, prompt: str) -> str:
    """A command that asks the server from a shell."""
    body = f'{{"model": "{model}", "prompt": "{prompt}", "max_tokens": 24}}'
    return f"curl -s {url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _client(timeout_seconds: float) -> httpx.Client:
    return httpx.Client(timeout=timeout_seconds, trust_env=False)
