"""Only checkpoints that passed their gates are trained on, aligned or served.

Why: what a job wrote last is what the next one loads, whether or not it is any good.
How: each checkpoint, policy and release that a stage read is traced by its digest to the record that made it,
which must have completed with every verdict passed.
"""

from __future__ import annotations

from collections.abc import Iterator

from maturity.evidence import Evidence, Record, inputs, outputs, places, verdicts, where
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "REL"
LEVEL = 3
RISK = "critical"
AXIS = "operational_readiness"
PATTERN = "Validation Gate"
QUESTION = "Who says that a checkpoint is good, and what happens to one that is not?"
REMEDY = (
    "Give every stage that makes weights a gate under `gates:` and start stages by flow only (small effort)."
)

WEIGHTS = ("checkpoint", "sft_policy", "policy", "weights")


def check(evidence: Evidence) -> Finding:
    """Every digest of weights that a stage used was vouched for by the stage that made it."""
    used = list(_used(evidence))
    if not used:
        return unknown("no stage has used a checkpoint yet")
    bad = [(one, artifact) for one, artifact in used if not _vouched(evidence, artifact["digest"])]
    if bad:
        record, artifact = bad[0]
        what = f"{artifact['name']} {artifact['digest'][:12]}"
        return disproved(
            f"{where(record)} used {what}, which no passed gate vouches for", places(r for r, _ in bad)
        )
    gates = sum(len(verdicts(one)) for one in _producers(evidence, used))
    return proved(
        f"{len(used)} hand-overs by digest, {gates} verdicts behind them, all passed",
        places(r for r, _ in used),
    )


def _used(evidence: Evidence) -> Iterator[tuple[Record, Record]]:
    for record in evidence.production():
        for artifact in inputs(record):
            if artifact["name"] in WEIGHTS:
                yield record, artifact
        if record.get("stage") == "deploy" and record.get("status") == "completed":
            for artifact in outputs(record, "deployment"):
                yield record, artifact


def _vouched(evidence: Evidence, digest: str) -> bool:
    makers = evidence.makers(digest)
    return any(_passed(record) for record in makers)


def _passed(record: Record) -> bool:
    said = verdicts(record)
    return record.get("status") == "completed" and bool(said) and all(verdict["passed"] for verdict in said)


def _producers(evidence: Evidence, used: list[tuple[Record, Record]]) -> list[Record]:
    digests = {artifact["digest"] for _, artifact in used}
    return [one for one in evidence.records if any(a["digest"] in digests for a in outputs(one))]
