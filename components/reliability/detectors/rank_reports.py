"""What the ranks themselves have found wrong: a gradient they left out, copies of the model that differ.

They have decided already, with all figures at hand; this makes their word a finding of the supervisor: it
gets into the record, and copies that differ end the attempt, with an incident bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from components import plugins
from components.reliability.finding import Finding, Sight

KINDS = {"skipped_step": "bad_gradient", "replica_divergence": "replica_divergence"}
"""What an event is called as a finding."""
ADVICE = {
    "bad_gradient": "The same rank again: take its device out. All ranks: look at their batches.",
    "replica_divergence": "The same rank again: take its device out. Every save was compared before.",
}


class Config(plugins.Config):
    """Nothing to choose: the ranks decide by `training.gradients` and `training.replicas`."""


class RankReports:
    """All ranks say the same; rank 0's word is taken."""

    def look(self, sight: Sight) -> Iterator[Finding]:
        """A finding for each report."""
        for event in sight.events:
            if event["kind"] in KINDS and event["rank"] == 0:
                yield _finding(event)


def _finding(event: Mapping[str, Any]) -> Finding:
    kind, culprit = KINDS[event["kind"]], event["culprit"]
    left_out = "; the step was left out on all ranks" if kind == "bad_gradient" else ""
    whose = f"rank {culprit}: " if culprit is not None and kind == "bad_gradient" else ""
    return Finding(
        kind=kind,
        sentence=f"step {event['step']}: {whose}{event['reason']}{left_out}",
        rank=culprit,
        step=int(event["step"]),
        ends=kind == "replica_divergence",
        confidence="certain" if culprit is not None else "unclear",
        advice=ADVICE[kind],
        figures=event["figures"],
    )


def make(config: Config, ranks: int) -> RankReports:
    """Anew for each attempt."""
    return RankReports()
