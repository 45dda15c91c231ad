"""A stalled job is found by its progress, and the rank to blame is named.

Why: a rank that hangs is still a live process; collectives wait 30 minutes by default and name nobody.
How: the silent_stall drill stops one rank of a real job; its record must hold the verdict that the right rank
was named, the stall with the seconds until it was noticed and its recovery, and no verdict that failed.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, drilled, places
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "FLT"
LEVEL = 3
RISK = "critical"
AXIS = "reliability"
PATTERN = "Heartbeat by Progress"
QUESTION = "How long does a hang last before somebody sees it?"
REMEDY = (
    "Run `stanchion case silent_stall`; when it fails, its report says which limit was missed (small effort)."
)


def check(evidence: Evidence) -> Finding:
    """The drill was run, the stall was named, and the job went on."""
    drills = evidence.case_study("silent_stall")
    if not drills:
        return unknown("never drilled: no record of the silent_stall case study")
    bad = [one for one in drills if not _named(one)]
    if bad:
        return disproved("a stopped rank was not named and recovered from", places(bad))
    slowest = max(float(fault["seconds_to_detect"]) for one in drills for fault in _named(one))
    ranks = sorted({int(fault["rank"]) for one in drills for fault in _named(one)})
    named = ", ".join(f"rank {rank}" for rank in ranks)
    return proved(f"{named} named after at most {slowest:.1f} s, and the job recovered", places(drills))


def _named(record: Record) -> list[Record]:
    """Stalls with a culprit and a recovery, of a drill in which the culprit was the right one."""
    if not drilled(record, "right rank named"):
        return []
    stalls = [
        fault for fault in record.get("faults") or [] if fault["kind"] == "stall" and fault["recovered"]
    ]
    return [one for one in stalls if one.get("rank") is not None and one.get("seconds_to_detect") is not None]
