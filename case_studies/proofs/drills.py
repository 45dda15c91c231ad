"""Each fault is found in time, blamed on the right rank, kept as evidence and mended; no healthy run is.

Real ranks, 2, 3 or 4 of them, train under the supervisor with the limits and detectors that are shipped; one
fault strikes one of them at a drawn step and phase. A new file in `components/reliability/fault_kinds/` is a
new row here by existing.

Measured, by the clock of the one machine: **detection** from the moment the fault strikes (the rank itself
writes it down) until the look of the supervisor that found it, against the larger of three median steps of
that run and two seconds; for faults that only make a rank slow, in steps, since a few slow steps are no
fault, and those of a slow rank are slow on all. **Culprit**: the rank that the first finding names.
**Bundle** from that look until the incident's page is written. **Recovery** from there until every rank steps
again. And in two jobs that nothing strikes, one of them beside processes that take both cores: alarms.

Ranks are forked from a warm process, see `_forked`, so recovery is without the seconds of imports that a
restart under torchrun takes; the pause before a restart is none, and replicas are compared in every step
instead of every 50.
"""

from __future__ import annotations

import logging
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from case_studies.proofs import _data, _forked
from case_studies.proofs._drilled import Place, drilled, healthy
from components.plugins import names
from components.reliability.faults import KINDS, point_of

logger = logging.getLogger(__name__)

TITLE = "Every fault is found in time and blamed on the right rank"
PHASES = ("data", "forward", "backward", "optimizer")
STEPS = range(7, 13)
"""In which a fault may strike: the pace of the run is known by then, and there is a checkpoint."""
BAR_SECONDS, BAR_MEDIANS, BUNDLE_SECONDS, RIGHT_SHARE = 2.0, 3, 5.0, 0.95
BAR_SLOW_STEPS = 10
"""In which a rank is slow, and is to be found, where that is all that is wrong."""
SETTINGS: dict[str, dict[str, float]] = {
    "slow_rank": {"seconds": 0.3},
    "slow_storage": {"seconds": 0.1, "lasts": 6.0},
}
"""Kinds that only make a rank slow, and how slow: a few times as slow as it was."""
WHERE = {
    "failing_storage": ("data",),
    "slow_storage": ("data",),
    "slow_rank": ("data", "forward"),
}
"""Where storage is read, and where no rank waits for another; all other kinds in any phase of a step."""
LATER = {"flipped_gradient": range(18, 22)}
"""What is told from how large gradients were before."""
RANKS = {"partition": (3, 4)}
"""Of two ranks the link between them has two ends, and either may be to blame; all others on 2, 3 or 4."""
NOT_HERE = {"poisoned_batch": "its finding is a loss that all ranks share, and names none; see `loss_spike`"}
HEALTHY = {
    "quiet": {"steps": 1000, "saves": 20, "busy": 0},
    "loaded": {"steps": 400, "saves": 8, "busy": 2},
}
"""Steps, checkpoints, and processes beside that take a core each."""


def prove(*, seed: int = 0, count: int = 20, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Every kind that many times, then the healthy jobs; in a process of its own, which may fork.

    Of named kinds the drills alone.
    """
    with tempfile.TemporaryDirectory() as name:
        return _forked.runner(__spec__.name, name, str(seed), str(count), *kinds)


def run(folder: Path, seed: int, count: int, *named: str) -> dict[str, Any]:
    """All of it, in this process."""
    _forked.warm_up()
    _data.make_real_in_pieces(folder / "data")
    draw, kinds = random.Random(seed), named or [kind for kind in names(KINDS) if kind not in NOT_HERE]
    journal = []
    for number, place in enumerate([place_of(kind, draw) for _ in range(count) for kind in kinds]):
        journal.append(drilled(folder, f"drill-{number:04d}", place))
        logger.info("%s", _told(journal[-1]))
    by_kind = {kind: summary([one for one in journal if one["kind"] == kind]) for kind in kinds}
    calm = {} if named else {name: healthy(folder, name, **how) for name, how in HEALTHY.items()}
    quiet = all(not job["alarms"] for job in calm.values())
    return {
        "holds": quiet and all(kind["holds"] for kind in by_kind.values()),
        "drills": len(journal),
        "bars": {
            "seconds": BAR_SECONDS,
            "or_median_steps": BAR_MEDIANS,
            "slow_steps": BAR_SLOW_STEPS,
            "right_share": RIGHT_SHARE,
            "bundle_seconds": BUNDLE_SECONDS,
        },
        "counted_in_steps": list(SETTINGS),
        "not_drilled": NOT_HERE,
        "by_kind": by_kind,
        "healthy": calm,
        "journal": journal,
    }


def place_of(kind: str, draw: random.Random) -> Place:
    """Drawn, as far as the kind leaves it open."""
    ranks, slow, point = draw.choice(RANKS.get(kind, (2, 3, 4))), kind in SETTINGS, point_of(kind)
    return Place(
        kind=kind,
        ranks=ranks,
        rank=draw.randrange(ranks),
        step=draw.choice(LATER.get(kind, STEPS)),
        phase=point or draw.choice(WHERE.get(kind, PHASES)),
        steps=BAR_SLOW_STEPS if slow else 1,
        more=BAR_SLOW_STEPS + 1 if slow else 3,
        settings=SETTINGS.get(kind, {}),
    )


def summary(journal: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a kind came to."""
    found = [one for one in journal if one["detected"]]
    late = [one for one in found if not in_time(one)]
    right = sum(one["right"] for one in found) / len(journal)
    bundles = [one["bundle_seconds"] for one in found if "bundle_seconds" in one]
    recoveries = [one["seconds_to_recover"] for one in found if one["seconds_to_recover"]]
    return {
        "holds": len(found) == len(journal)
        and not late
        and right >= RIGHT_SHARE
        and max(bundles, default=0) <= BUNDLE_SECONDS
        and all(one["recovered"] for one in journal)
        and not any(one["false_alarms"] for one in found),
        "drills": len(journal),
        "detected": len(found),
        "late": len(late),
        "right_share": round(right, 3),
        "findings": sorted({one["finding"] for one in found}),
        "seconds_to_detect": spread([one["seconds_to_detect"] for one in found]),
        "steps_to_detect": spread([one["steps_to_detect"] for one in found]),
        "bundle_seconds": spread(bundles),
        "seconds_to_recover": spread(recoveries),
        "recovered": sum(one["recovered"] for one in journal),
    }


def in_time(one: dict[str, Any]) -> bool:
    """Whether a drill was found within its bar."""
    if one["kind"] in SETTINGS:
        return bool(one["steps_to_detect"] <= BAR_SLOW_STEPS)
    bar = max(BAR_MEDIANS * one["median_step_seconds"], BAR_SECONDS)
    return bool(one["seconds_to_detect"] <= bar)


def spread(values: Sequence[float]) -> list[float]:
    """Least, median and most; empty of nothing."""
    return (
        [round(float(one), 3) for one in (min(values), statistics.median(values), max(values))]
        if values
        else []
    )


def _told(one: dict[str, Any]) -> str:
    where = f"{one['kind']} of rank {one['rank']} of {one['ranks']} in {one['phase']} of step {one['step']}"
    if not one["detected"]:
        return f"{where}: NOT FOUND {one['error']}"
    named = f"{one['finding']}, rank {one['culprit']}{'' if one['right'] else ' WRONG'}"
    late = "" if in_time(one) else " LATE"
    bundle = f", bundle {one['bundle_seconds']} s" if "bundle_seconds" in one else ""
    found = f"{named} after {one['seconds_to_detect']} s, {one['steps_to_detect']} steps{late}{bundle}"
    mended = f"recovered in {one['seconds_to_recover']} s" if one["recovered"] else "NOT RECOVERED"
    return f"{where}: {found}, {mended}: {one['detail']}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    _forked.answer(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
