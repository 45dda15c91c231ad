"""Which samples a run has read is known to the last one, from a position that was counted.

Why: a loader that cannot say where it was repeats and loses samples at each restart, and no one can say what
a model has seen.
How: each training record holds the position in the data: the manifest it was counted on is that of the data
set that the run read, and the samples consumed are its steps times the sequences in a batch, restarts or not.
"""

from __future__ import annotations

from typing import Any

from maturity.evidence import Evidence, Record, inputs, metrics, places
from maturity.model import Finding, disproved, proved, unknown

DIMENSION = "DAT"
LEVEL = 2
RISK = "high"
AXIS = "reliability"
PATTERN = "Order by Arithmetic"
QUESTION = "Which documents were in the batch of the step at which your loss spiked?"
REMEDY = "Read through `components.data.stream`; then `stanchion explain RUN --step S` says (medium effort)."


def check(evidence: Evidence) -> Finding:
    """Every pre-training record says where in which data set it ended, and the count adds up."""
    trained = evidence.stage("pretrain")
    if not trained:
        return unknown("no training has been recorded")
    lost = [one for one in trained if not _position(one)]
    if lost:
        return disproved("a run does not say where in its data it ended", places(lost))
    wrong = [one for one in trained if not _adds_up(one)]
    if wrong:
        return disproved(
            "a position is not of the data that was read, or not what the steps add up to", places(wrong)
        )
    total = sum(_position(one)["samples_consumed"] for one in trained)
    restarts = sum(int(metrics(one).get("restarts") or 0) for one in trained)
    return proved(
        f"{total} sequences counted over {len(trained)} run(s), {restarts} restart(s)", places(trained)
    )


def _position(record: Record) -> dict[str, Any]:
    found = metrics(record).get("position")
    return found if isinstance(found, dict) else {}


def _adds_up(record: Record) -> bool:
    position = _position(record)
    read = {artifact["digest"] for artifact in inputs(record, "shards")}
    consumed = int(metrics(record).get("step") or 0) * int(position.get("batch_size") or 0)
    return position.get("manifest_sha256") in read and position.get("samples_consumed") == consumed > 0
