"""Training says how many damaged samples it left out, and never left out more than was allowed.

Why: a loader that warns and goes on loses a corpus to a bad disk, and the loss curve stays smooth.
How: each training record holds the number of samples left out; above zero only where its settings say `skip`,
and within both limits of its settings, the share against the documents that the data record counted.
"""

from __future__ import annotations

from typing import Any

from maturity.evidence import Evidence, Record, inputs, metrics, outputs, places
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "DAT"
LEVEL = 3
RISK = "medium"
AXIS = "reliability"
PATTERN = "Quarantine with a Budget"
QUESTION = "How many samples did your last run skip, and how many may it skip before somebody is told?"
REMEDY = (
    "Train through `stanchion run pretrain` with training.damaged_samples; build damaged shards again with "
    "`stanchion rebuild` (small effort)."
)


def check(evidence: Evidence) -> Finding:
    """Every pre-training record counts what it left out, and the count was allowed."""
    trained = evidence.stage("pretrain")
    if not trained:
        return unknown("no training has been recorded")
    silent = [one for one in trained if not isinstance(_left_out(one), int)]
    if silent:
        return disproved("nobody counted the samples that were left out", places(silent))
    over = [one for one in trained if not _allowed(one, _documents(evidence, one))]
    if over:
        return disproved("more samples were left out than the settings allow", places(over))
    total = sum(_left_out(one) for one in trained)
    return proved(f"{total} samples left out over {len(trained)} run(s), none unasked", places(trained))


def _left_out(record: Record) -> Any:
    return metrics(record).get("dropped_samples")


def _allowed(record: Record, documents: int) -> bool:
    """Skipping must have been asked for, and both limits hold."""
    count = _left_out(record)
    policy = ((record.get("config") or {}).get("training") or {}).get("damaged_samples") or {}
    if count == 0:
        return True
    within = count <= policy.get("max_documents", 0) and count <= policy.get("max_share", 0.0) * documents
    return policy.get("on_fault") == "skip" and within


def _documents(evidence: Evidence, record: Record) -> int:
    """In the train split of the data set that was read, as its own record says; 0 where there is none."""
    read = {artifact["digest"] for artifact in inputs(record, "shards")}
    made = [
        metrics(one)
        for one in evidence.stage("shard_dataset")
        if read & {artifact["digest"] for artifact in outputs(one, "shards")}
    ]
    return max((int((one.get("documents_per_split") or {}).get("train") or 0) for one in made), default=0)
