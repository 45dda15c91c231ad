"""A checkpoint with one flipped bit is refused, and nothing is resumed from it.

Why: a flipped bit loads without an error through torch, safetensors and DeepSpeed, and trains on.
How: the rotten_checkpoint drill flips bits in a real checkpoint; its record must hold the corruption as a
fault that was noticed and recovered from, and every claim of the drill must have passed.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, places, verdicts
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
    return proved(str(_refused(drills[0])[0]["detail"]), places(drills))


def _refused(record: Record) -> list[Record]:
    """Corruptions that were noticed, of a drill whose every claim holds."""
    if record.get("status") != "completed" or not all(verdict["passed"] for verdict in verdicts(record)):
        return []
    return [one for one in record.get("faults") or [] if one["kind"] == "corruption" and one["recovered"]]
