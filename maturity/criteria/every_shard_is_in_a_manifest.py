"""Every shard is in a manifest with its size, samples and SHA-256.

Why: readers trust file names; a tar cut at a member boundary loses half its samples without an error.
How: each data record counts its shards and points at a manifest by digest, and each record of a stage that
reads the data names the same digest.
"""

from __future__ import annotations

from maturity.evidence import Evidence, Record, inputs, metrics, outputs, places
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "DAT"
LEVEL = 1
RISK = "high"
AXIS = "reliability"
PATTERN = "Shard Manifest"
QUESTION = "Who writes the list of shards, and when is it checked?"
REMEDY = (
    "Write shards through `stanchion run shard_dataset`, which publishes the manifest last (small effort)."
)


def check(evidence: Evidence) -> Finding:
    """Every data set was counted shard by shard, and what training read is one of them."""
    made = evidence.stage("shard_dataset")
    if not made:
        return unknown("no data set has been recorded")
    bare = [one for one in made if not outputs(one, "shards") or not _count(one)]
    if bare:
        return disproved("a data set was published without a manifest that counts its shards", places(bare))
    known = {artifact["digest"] for one in made for artifact in outputs(one, "shards")}
    strangers = [
        one for one in evidence.production() if any(a["digest"] not in known for a in inputs(one, "shards"))
    ]
    if strangers:
        return disproved("shards were read that no recorded manifest lists", places(strangers))
    total = sum(map(_count, made))
    return proved(f"{total} shards in {len(known)} manifest(s), and nothing else was read", places(made))


def _count(record: Record) -> int:
    """How many shards the manifest lists, whether the record holds their number or the list."""
    shards = metrics(record).get("shards") or 0
    return len(shards) if isinstance(shards, (list, dict)) else int(shards)
