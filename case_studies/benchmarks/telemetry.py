"""What telemetry costs a training step: the same steps bare, with telemetry, and as the trainer does them.

    python -m case_studies.benchmarks.telemetry

Two ranks of the laptop's own model. The three sides take turns step by step, in an order drawn anew each
round; the figure is the median over rounds of the ratio within a round, with the interval that holds 95% of
the medians of resampled rounds. Wall time is what the bar is about; CPU time is told beside it, since a
machine that others use makes wall time wide.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from case_studies._small import make_shards, placed
from case_studies.benchmarks._jobs import result_of
from case_studies.benchmarks.telemetry_ranks import SIDES
from components import quiet, storage
from components.config import Profile, Run
from components.jobs import Job
from components.observability import canvas
from components.observability.canvas import SMALL, colour
from components.observability.provenance import machine, versions
from components.records import Artifact, git_commit
from components.training.job import job_for

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "case_studies" / "results" / "telemetry"
RUN = Run(name="telemetry", data={"source": {"kind": "python_stdlib", "max_documents": 300}})
MOST = 0.02
"""Of a step, that telemetry may cost."""
RESAMPLED = 2000
TITLES = {"telemetry": "telemetry", "trainer": "telemetry and the gradient guard"}
logger = logging.getLogger(__name__)


def measured(folder: Path, *, run: Run, rounds: int, shards: Artifact | None = None) -> dict[str, Any]:
    """Every side in every round, and whether the bar holds; on shards of the run's own unless given."""
    place = folder / "telemetry"
    shutil.rmtree(place, ignore_errors=True)
    profile = placed(Profile.model_validate("laptop"), place)
    job = job_for(run, profile, shards or make_shards(run, profile))
    settings = {**job.settings, "rounds": rounds}
    target = "case_studies.benchmarks.telemetry_ranks"
    result = result_of(Job("telemetry", target, settings, place / "job", profile.processes))
    shutil.rmtree(place)
    kept = result.pop("rounds")
    over = {
        side: {
            unit: ratio([one[side][unit] / one["bare"][unit] - 1 for one in kept]) for unit in ("wall", "cpu")
        }
        for side in TITLES
    }
    cost = over["telemetry"]["wall"]["median"]
    return {
        **result,
        "rounds": rounds,
        "step_seconds": {side: median(one[side]["wall"] for one in kept) for side in SIDES},
        "over_bare": over,
        "alone_over_bare": result["seconds_alone"] / median(one["bare"]["wall"] for one in kept),
        "most": MOST,
        "holds": cost <= MOST,
    }


def ratio(found: list[float]) -> dict[str, float]:
    """The median, and the interval of it over rounds that are drawn again."""
    dice = random.Random(0)
    medians = sorted(median(dice.choices(found, k=len(found))) for _ in range(RESAMPLED))
    low, high = medians[int(0.025 * RESAMPLED)], medians[int(0.975 * RESAMPLED)]
    return {"median": round(median(found), 5), "low": round(low, 5), "high": round(high, 5)}


def drawn(found: dict[str, Any]) -> str:
    """What is added to a bare step, with its interval, under the bar."""
    rows = [(side, unit) for side in TITLES for unit in ("wall", "cpu")]
    height = 62 + 58 + 40 * len(rows)
    with canvas.style("telemetry"):
        cost = found["over_bare"]["telemetry"]["wall"]["median"]
        axes = canvas.axes(
            f"Telemetry of every rank costs {100 * cost:.1f} % of a step of "
            f"{1000 * found['step_seconds']['bare']:.0f} ms",
            "added to a bare DeepSpeed step, %; median of rounds and its 95% interval",
            height=height,
            margin={"left": 200, "right": 70, "bottom": 58},
        )
        for row, (side, unit) in enumerate(rows):
            one = {name: 100 * value for name, value in found["over_bare"][side][unit].items()}
            shade = colour("blue" if side == "telemetry" else "slate")
            axes.plot([one["low"], one["high"]], [row, row], color=shade, linewidth=3)
            axes.plot([one["median"]], [row], "o", color=shade, markersize=7)
            clear = max(one["high"], 100 * found["most"])
            axes.text(clear + 0.1, row, f"  {one['median']:+.1f}", va="center", color=shade, size=SMALL)
        axes.axvline(100 * found["most"], color=colour("red"), linewidth=1, linestyle=(0, (4, 3)))
        axes.axvline(0, color=colour("ink"), linewidth=1)
        names = {"wall": "wall time", "cpu": "CPU time"}
        axes.set_yticks(range(len(rows)), [f"{TITLES[side]},\n{names[unit]}" for side, unit in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        told = f"{found['machine']['processor']}, {found['commit'] or 'no commit'}, {found['at'][:10]}"
        axes.figure.text(4 / canvas.WIDTH, 8 / height, told, size=SMALL, color=colour("muted"))
        return canvas.svg(axes.figure, "telemetry", alone=True)


def main() -> int:
    """Measure, keep, and say whether the bar holds; 1 when it does not."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rounds", type=int, default=400)
    asked.add_argument("--folder", type=Path, default=ROOT / "runs" / ".bench")
    asked.add_argument("--results", type=Path, default=RESULTS)
    chosen = asked.parse_args()
    at, commit = datetime.now(UTC).isoformat(timespec="seconds"), git_commit()
    found = measured(chosen.folder, run=RUN, rounds=chosen.rounds)
    found |= {"at": at, "commit": commit, "machine": machine(), "versions": versions()}
    storage.write_json(str(chosen.results / "telemetry.json"), found)
    storage.write_text(str(chosen.results / "telemetry.svg"), drawn(found) + "\n")
    for side, units in found["over_bare"].items():
        for unit, one in units.items():
            logger.info("%s over bare, %s: %+.4f (%+.4f to %+.4f)", side, unit, *one.values())
    logger.info("telemetry alone: %.0f us a step", 1e6 * found["seconds_alone"])
    logger.info("at most %.2f: %s", MOST, "holds" if found["holds"] else "DOES NOT HOLD")
    logger.info("figures and picture: %s", chosen.results)
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    quiet.apply()
    sys.exit(main())
