"""The time of a training step is broken down by phase.

Why: a slow job is only mended where it is slow, and a busy processor does not say where that is.
How: each training record holds the seconds of a step by phase, at least three of them above zero.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, metrics, places, where
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "TRN"
LEVEL = 2
RISK = "high"
AXIS = "cost_efficiency"
PATTERN = "Step-Time Breakdown"
QUESTION = "Which phase takes most of a step this week?"
REMEDY = (
    "Write `seconds={phase: ...}` with every step event; the flow sums them into the record (small effort)."
)

FEWEST_PHASES = 3


def check(evidence: Evidence) -> Finding:
    """Every pre-training record says where its steps spent their time."""
    trained = evidence.stage("pretrain")
    if not trained:
        return unknown("no training has been recorded")
    blind = [one for one in trained if len(phases(one)) < FEWEST_PHASES]
    if blind:
        return disproved(f"fewer than {FEWEST_PHASES} phases were timed", places(blind))
    return proved(f"{where(trained[0])}: {_shares(trained[0])}", places(trained))


def phases(record: Record) -> dict[str, float]:
    """Seconds by phase, as far as they were measured."""
    timed = metrics(record).get("seconds_by_phase")
    return {name: float(value) for name, value in timed.items() if value} if isinstance(timed, dict) else {}


def _shares(record: Record) -> str:
    timed = phases(record)
    largest = sorted(timed, key=lambda name: (-timed[name], name))
    return ", ".join(f"{name} {timed[name] / sum(timed.values()):.0%}" for name in largest)
