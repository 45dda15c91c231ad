"""A checkpoint with one flipped bit is refused, and nothing is resumed from it.

Why: a flipped bit loads without an error through torch, safetensors and DeepSpeed, and trains on.
How: the rotten_checkpoint drill flips bits in a real checkpoint; its record must hold the verdict
that all were refused and the corruption as a fault that was recovered from, and no verdict that failed.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, drilled, places, verdicts
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "CKP"
LEVEL = 2
RISK = "high"
AXIS = "reliability"
PATTERN = "Sealed Checkpoint"
QUESTION = "Would you notice one flipped bit in a file that you resume from?"
REMEDY = (
    "Run `stanchion case rotten_checkpoint`; when it fails, a load path skips the manifest (small effort)."
)


def check(evidence: Evidence) -> Finding:
    """The drill was run, and every flipped bit was refused."""
    drills = evidence.case_study("rotten_checkpoint")
    if not drills:
        return unknown("never drilled: no record of the rotten_checkpoint case study")
    bad = [one for one in drills if not _refused(one)]
    if bad:
        return disproved("a checkpoint with a flipped bit was used", places(bad))
    flips = sum(_flips(one) for one in drills)
    return proved(
        f"all {flips} flipped bits were refused, and the run went on from a whole one", places(drills)
    )


def _refused(record: Record) -> list[Record]:
    """Corruptions that were recovered from, of a drill in which every flip was refused."""
    if not drilled(record, "refused share, sealed"):
        return []
    return [one for one in record.get("faults") or [] if one["kind"] == "corruption" and one["recovered"]]


def _flips(record: Record) -> int:
    tried = next((one for one in verdicts(record) if one["gate"] == "flips tried"), {})
    return int((tried.get("figures") or {}).get("value") or 0)
