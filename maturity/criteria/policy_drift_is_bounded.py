"""The drift of an aligned policy is measured, and a policy that drifts too far is refused.

Why: under a reward a policy leaves the text it was trained on; reward rises while the language dies.
How: each reinforcement-learning record holds the divergence from its start and a passed verdict of the gate
that bounds it, or was refused.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, inputs, metrics, places, verdicts
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "LLM"
LEVEL = 3
RISK = "critical"
AXIS = "reliability"
PATTERN = "KL Budget"
QUESTION = "What bounds how far a policy may drift from where it started?"
REMEDY = "Keep `policy_did_not_cheat` among `gates.alignment`; it bounds the divergence (small effort)."

GATE = "policy_did_not_cheat"


def applies(evidence: Evidence) -> bool:
    """A platform that serves models it never aligned has no policy that could drift."""
    served = evidence.stage("deploy")
    return evidence.attempted("rl") or not served or any(inputs(one, "policy") for one in served)


def check(evidence: Evidence) -> Finding:
    """Every policy that was kept has a measured divergence that a gate has accepted."""
    aligned = evidence.stage("rl")
    if not aligned:
        return unknown("no policy has come out of alignment")
    bad = [one for one in aligned if drift(one) is None or not _bounded(one)]
    if bad:
        return disproved("a policy was kept whose drift no gate had measured", places(bad))
    largest = max(drift(one) or 0.0 for one in aligned)
    return proved(f"at most {largest:.3f} nats a token from the start, accepted by {GATE}", places(aligned))


def drift(record: Record) -> float | None:
    """Divergence of the policy from its start, in nats a token."""
    value = metrics(record).get("kl")
    return float(value) if isinstance(value, (int, float)) else None


def _bounded(record: Record) -> bool:
    said = [verdict for verdict in verdicts(record) if verdict["gate"] == GATE]
    return bool(said) and all(verdict["passed"] for verdict in said)
