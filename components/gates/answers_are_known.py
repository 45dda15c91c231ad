"""The server gives the trainer's own answers, token by token.

Idea: greedy answers of the trainer's model to fixed prompts are computed from the checkpoint; a server with
the wrong weights, tokenizer or start token gives others. Where two candidates tie, either is right.
When to use: before every promotion. What it costs: one answer a prompt, under a second on a small model.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """How many prompts may go wrong."""

    max_unknown: int = Field(default=0, ge=0)
    """Prompts whose answer may differ from the trainer's."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare the figures of `answers`: how many were asked, how many came back as the trainer's."""
    figures = subject.figures["answers"]
    asked, known = figures["asked"], figures["known"]
    passed = asked > 0 and asked - known <= config.max_unknown
    reason = f"{known} of {asked} answers are the trainer's"
    if first := figures["first_difference"]:
        reason += f"; {first}"
    return Verdict(gate="answers_are_known", passed=passed, reason=reason, figures=figures)
