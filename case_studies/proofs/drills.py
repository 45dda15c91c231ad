"""Each fault is found in time, blamed on the right rank, kept as evidence and mended; no healthy run is.

Real ranks, 2, 3 or 4 of them, train under the supervisor with the limits and detectors that are shipped; one
fault strikes one of them at a drawn step and phase. A new file in `components/reliability/fault_kinds/` is a
new row here by existing.

Measured, by the clock of the one machine: **detection** from the moment the fault strikes (the rank itself
writes it down) until the look of the supervisor that found it, against the larger of three median steps of
that run and two seconds; for faults that only make a rank slow, in steps, since a few slow steps are no
fault. **Culprit**: the rank that the first finding names. **Bundle** from that look until the incident's page
is written. **Recovery** from there until every rank steps again. And in two jobs that nothing strikes, one of
them beside processes that take both cores: alarms.

Ranks are forked from a warm process, see `_forked`, so recovery is without the seconds of imports that a
restart under torchrun takes; the pause before a restart is set to nothing.
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
STEPS = range(8, 16)
"""In which a fault may strike: the pace of the run is known by then, and there is a checkpoint."""
BAR_SECONDS, BAR_STEPS, BUNDLE_SECONDS, RIGHT_SHARE = 2.0, 20, 5.0, 0.95
BAR_MEDIANS = 3
IN_DATA = {"failing_storage", "slow_storage"}
"""They strike where storage is read."""
IN_STEPS = {"slow_rank", "slow_storage"}
"""They only make a rank slow, for as long as is looked for them; detection is counted in steps."""
HEALTHY = (("quiet", 1000, 20, 0), ("loaded", 400, 8, 2))
"""Name, steps, checkpoints, and busy processes beside."""


def prove(*, seed: int = 0, count: int = 20) -> dict[str, Any]:
    """Every kind that many times, then the healthy jobs; in a process of its own, which may fork."""
    with tempfile.TemporaryDirectory() as name:
        return _forked.runner(__spec__.name, name, str(seed), str(count))


def run(
    folder: Path, seed: int, count: int, kinds: Sequence[str] = (), jobs: Sequence[Any] = HEALTHY
) -> dict[str, Any]:
    """All of it, in this process."""
    _forked.warm_up()
    _data.make_real_in_pieces(folder / "data")
    draw = random.Random(seed)
    plan = [place_of(kind, draw) for _ in range(count) for kind in kinds or names(KINDS)]
    journal = []
    for number, place in enumerate(plan):
        journal.append(drilled(folder, f"drill-{number:04d}", place))
        logger.info("%s", _told(journal[-1]))
    by_kind = {
        kind: summary([one for one in journal if one["kind"] == kind]) for kind in kinds or names(KINDS)
    }
    calm = {
        name: healthy(folder, name, steps=steps, saves=saves, busy=busy) for name, steps, saves, busy in jobs
    }
    quiet = all(not job["alarms"] for job in calm.values())
    return {
        "holds": quiet and all(kind["holds"] for kind in by_kind.values()),
        "drills": len(journal),
        "bars": {
            "detection": f"the larger of {BAR_MEDIANS} median steps and {BAR_SECONDS:g} s",
            "detection_of_slowness_steps": BAR_STEPS,
            "right_share": RIGHT_SHARE,
            "bundle_seconds": BUNDLE_SECONDS,
        },
        "by_kind": by_kind,
        "healthy": calm,
        "journal": journal,
    }


def place_of(kind: str, draw: random.Random) -> Place:
    """Drawn, as far as the kind leaves it open."""
    ranks, slow = draw.choice((2, 3, 4)), kind in IN_STEPS
    phase = point_of(kind) or ("data" if kind in IN_DATA else draw.choice(PHASES))
    if kind == "slow_rank":
        phase = draw.choice(("data", "forward"))  # in the others all ranks wait for each other
    return Place(
        kind=kind,
        ranks=ranks,
        rank=draw.randrange(ranks),
        step=draw.choice(STEPS),
        phase=phase,
        steps=BAR_STEPS if slow else 1,
        more=BAR_STEPS + 2 if slow else 3,
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
    if one["kind"] in IN_STEPS:
        return bool(one["steps_to_detect"] <= BAR_STEPS)
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
    _forked.answer(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
