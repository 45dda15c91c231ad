"""A server is ready when it has given a known answer, not when its port is open.

Why: /health stays green over wrong weights, a wrong tokenizer and a hung engine.
How: each deployment record holds passed verdicts of the gates that compare what the server says with what the
trainer computed.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, places, verdicts
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "SRV"
LEVEL = 2
RISK = "medium"
AXIS = "reliability"
PATTERN = "Readiness by Known Answers"
QUESTION = "What does your health check prove about the weights behind it?"
REMEDY = "Keep `answers_are_known` and `logprobs_match_trainer` among `gates.deployment` (small effort)."

GATES = ("answers_are_known", "logprobs_match_trainer")


def check(evidence: Evidence) -> Finding:
    """Every server that took traffic had answered first."""
    served = evidence.stage("deploy")
    if not served:
        return unknown("no deployment has completed")
    bare = [one for one in served if not any(_answers(one))]
    if bare:
        return disproved(f"promoted without a passed verdict of {' or '.join(GATES)}", places(bare))
    reason = next(reason for one in served for reason in _answers(one))
    return proved(reason, places(served))


def _answers(record: Record) -> list[str]:
    said = [verdict for verdict in verdicts(record) if verdict["gate"] in GATES]
    return [f"{one['gate']}: {one['reason']}" for one in said] if all(one["passed"] for one in said) else []
