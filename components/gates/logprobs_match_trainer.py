"""The server assigns the trainer's probabilities.

Idea: answers can agree while the model behind them has changed a little (a wrong precision, a stale cache,
one bad layer); the mean difference of log-probabilities over fixed texts shows it.
When to use: before every promotion, and whenever a server generates for training. What it costs: one
forward pass a text.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """Bounds on the mean absolute difference, in nats, by the precision served."""

    fp32: float = Field(default=1e-3, gt=0)
    """For weights served in fp32; equal weights differ by about 1e-6."""

    bf16: float = Field(default=0.03, gt=0)
    """For weights served in bf16; equal weights differ by about 0.01."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare the figures of `logprobs` with the bound for the precision served."""
    figures = subject.figures["logprobs"]
    bound: float = getattr(config, figures["precision"])
    mean, tokens = figures["mean_difference"], figures["tokens"]
    measured = tokens > 0 and mean is not None
    reason = f"no token was compared; at least one text is needed, bound {bound:g}"
    if measured:
        reason = f"mean difference {mean:.2g} nats over {tokens} tokens, allowed {bound:g}"
    passed = measured and mean <= bound  # NaN is not below anything
    return Verdict(
        gate="logprobs_match_trainer", passed=passed, reason=reason, figures={**figures, "bound": bound}
    )
