"""Every run has a price, stage by stage.

Why: what nobody priced nobody defends; the bill arrives without the names of those who caused it.
How: each record holds device-seconds and a cost in a currency; only a stage that held no device is free.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, places
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "CST"
LEVEL = 1
RISK = "medium"
AXIS = "cost_efficiency"
PATTERN = "Run Record"
QUESTION = "What did the last run cost, and which stage cost most?"
REMEDY = "Give the profile its `prices.device_hour`; the records then price themselves (small effort)."


def check(evidence: Evidence) -> Finding:
    """Every stage of work that held devices was priced."""
    work = evidence.production()
    if not work:
        return unknown("no stage has been recorded")
    free = [one for one in work if _seconds(one) <= 0 or _cost(one) <= 0]
    if free:
        return disproved("stages held devices that nobody priced", places(free))
    priced = f"{sum(map(_cost, work)):.4f} {work[0].get('currency', '')}".strip()
    dearest = max(work, key=lambda one: (_cost(one), str(one.get("stage"))))
    return proved(f"{len(work)} stages cost {priced}, most of it {dearest.get('stage')}", places(work))


def _seconds(record: Record) -> float:
    return float(record.get("device_seconds") or 0.0)


def _cost(record: Record) -> float:
    return float(record.get("cost") or 0.0)
