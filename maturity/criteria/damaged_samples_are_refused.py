"""A damaged sample is refused when it is read, and no step is trained on it.

Why: a tar has no checksum of its content, and its readers take a broken header for the end: a flipped bit
costs half a shard, or is trained on, without a line in any log.
How: the rotten_shard drill flips bits in real shards; its record must hold the verdicts that no reader handed
out anything else in silence, that the check refused every flip and that no step was trained on one, and the
corruption as a fault that was recovered from.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, drilled, places, verdicts
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "DAT"
LEVEL = 2
RISK = "high"
AXIS = "reliability"
PATTERN = "Shard Manifest"
QUESTION = "Would you notice one flipped bit in a sample that you train on, every time it is read?"
REMEDY = "Run `stanchion case rotten_shard`; when it fails, a reader skips the checksums (small effort)."

CLAIMS = ("silent share, checked reader", "refused share, check", "steps trained on a wrong sample")


def check(evidence: Evidence) -> Finding:
    """The drill was run, and no flipped bit was read in silence."""
    drills = evidence.case_study("rotten_shard")
    if not drills:
        return unknown("never drilled: no record of the rotten_shard case study")
    bad = [one for one in drills if not _refused(one)]
    if bad:
        return disproved("a sample with a flipped bit was handed out, or not found by the check", places(bad))
    flips = sum(_flips(one) for one in drills)
    return proved(f"all {flips} flipped bits were refused, and the shards were built again", places(drills))


def _refused(record: Record) -> bool:
    """Whether every claim was met, and the run went on from whole shards."""
    faults = record.get("faults") or []
    mended = any(one["kind"] == "corruption" and one["recovered"] for one in faults)
    return mended and all(drilled(record, claim) for claim in CLAIMS)


def _flips(record: Record) -> int:
    tried = next((one for one in verdicts(record) if one["gate"] == "flips tried"), {})
    return int((tried.get("figures") or {}).get("value") or 0)
