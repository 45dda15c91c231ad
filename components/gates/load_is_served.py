"""The server serves its load: no request is lost and first tokens come in time.

Idea: a short open-loop load test at the expected rate, on prompts the cache has not seen. When to use: before
every promotion. What it costs: the length of the test, about ten seconds by default.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """What the load test must have found."""

    max_error_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of requests that may fail or time out."""

    max_first_token_p95_seconds: float = Field(default=2.0, gt=0)
    """Time to first token that 95 % of requests must stay within; generous, for a laptop's cores."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare the figures of `load` with the bounds."""
    load = subject.figures["load"]
    p95 = load["first_token_seconds"].get("p95")
    share = load["error_share"]
    served_all = load["served"] > 0 and share <= config.max_error_share
    in_time = p95 is not None and p95 <= config.max_first_token_p95_seconds
    reason = f"{load['served']} of {load['requests']} requests served"
    if p95 is not None:
        reason += f", first token p95 {p95:.3f} s, allowed {config.max_first_token_p95_seconds:g} s"
    if load["first_error"]:
        reason += f"; first error: {load['first_error']}"
    figures = {
        "error_share": share,
        "max_error_share": config.max_error_share,
        "first_token_p95_seconds": p95,
        "max_first_token_p95_seconds": config.max_first_token_p95_seconds,
    }
    return Verdict(gate="load_is_served", passed=served_all and in_time, reason=reason, figures=figures)
