"""An open-loop load test: requests arrive when they arrive, as users do, however slow the answers are.

A closed loop waits for an answer before it asks again, and so is kindest to the slowest server. Every prompt
is random and carries a cache salt of its own, so no answer comes out of the prefix cache.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict

from components.errors import ConfigError
from components.serving.config import Load
from components.serving.vllm_server import Server


class Row(BaseModel):
    """One request, in seconds since the test began or since it was due."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    due: float
    sent: float
    first_token: float | None = None
    """Time to first token, from when the request was due."""
    per_token: float | None = None
    """Mean gap between the tokens after the first."""
    latency: float | None = None
    """Until the last token, from when the request was due."""
    tokens: int = 0
    error: str | None = None


def load_test(server: Server, load: Load, *, seed: int = 0) -> dict[str, Any]:
    """Send the traffic and measure: percentiles, rates, error share, and one row a request."""
    if (longest := load.prompt_tokens + load.output_tokens) > server.max_model_len:
        raise ConfigError(
            f"serving.load asks for {longest} tokens a request, the server takes {server.max_model_len}; "
            "lower serving.load.prompt_tokens or raise serving.max_model_len"
        )
    random_ = random.Random(seed)
    due = arrivals(load, random_)
    prompts = [random_.choices(range(1, server.vocab_size), k=load.prompt_tokens) for _ in due]
    rows = asyncio.run(_send_all(server.url, server.model, load, due, prompts))
    return summary(rows)


def arrivals(load: Load, random_: random.Random) -> list[float]:
    """Poisson arrivals: when each request is due, in seconds from the start."""
    at, due = 0.0, []
    for _ in range(load.requests):
        due.append(at)
        at += random_.expovariate(load.rate_per_second)
    return due


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What the rows say together; latencies are of the served requests alone."""
    served = [row for row in rows if row.error is None]
    end = max((row.due + (row.latency or 0.0) for row in served), default=0.0)
    tokens = sum(row.tokens for row in served)
    errors = [row.error for row in rows if row.error]
    return {
        "requests": len(rows),
        "served": len(served),
        "error_share": len(errors) / len(rows) if rows else 1.0,
        "first_error": errors[0] if errors else None,
        "seconds": end,
        "requests_per_second": len(served) / end if end else 0.0,
        "tokens_per_second": tokens / end if end else 0.0,
        "late_seconds_max": max((row.sent - row.due for row in rows), default=0.0),
        "first_token_seconds": percentiles([row.first_token for row in served]),
        "per_token_seconds": percentiles([row.per_token for row in served]),
        "latency_seconds": percentiles([row.latency for row in served]),
        "rows": [row.model_dump() for row in rows],
    }


def percentiles(values: Sequence[float | None]) -> dict[str, float]:
    """p50, p95 and p99 by the nearest rank, so that each is a latency somebody had; empty without values."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return {}
    return {f"p{share}": ordered[-(-share * len(ordered) // 100) - 1] for share in (50, 95, 99)}


async def _send_all(
    url: str, model: str, load: Load, due: list[float], prompts: list[list[int]]
) -> list[Row]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=load.timeout_seconds, limits=limits, trust_env=False) as http:
        start = time.monotonic()
        requests = (
            _send(http, f"{url}/v1/completions", _body(model, load, prompt), at, start, load.timeout_seconds)
            for at, prompt in zip(due, prompts, strict=True)
        )
        return list(await asyncio.gather(*requests))


def _body(model: str, load: Load, prompt: list[int]) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "cache_salt": uuid.uuid4().hex,
    }


async def _send(
    http: httpx.AsyncClient, url: str, body: dict[str, Any], due: float, start: float, timeout_seconds: float
) -> Row:
    await asyncio.sleep(max(0.0, start + due - time.monotonic()))
    sent = time.monotonic() - start
    try:
        async with asyncio.timeout(timeout_seconds):
            times = await _stream(http, url, body)
    except (httpx.HTTPError, TimeoutError) as error:
        return Row(due=due, sent=sent, error=f"{type(error).__name__}: {error}")
    if len(times) < body["max_tokens"]:
        return Row(
            due=due, sent=sent, tokens=len(times), error=f"{len(times)} tokens came of those asked for"
        )
    first, last = times[0] - start - due, times[-1] - start - due
    gap = (last - first) / (len(times) - 1) if len(times) > 1 else None
    return Row(due=due, sent=sent, first_token=first, per_token=gap, latency=last, tokens=len(times))


async def _stream(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> list[float]:
    """When each token arrived."""
    times: list[float] = []
    async with http.stream("POST", url, json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
                times += [time.monotonic()] * len(choice.get("token_ids") or [])
    return times
