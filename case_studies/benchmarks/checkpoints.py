"""What a save costs training: ours against DeepSpeed's own and torch's distributed checkpoint.

    python -m case_studies.benchmarks.checkpoints

Two ranks hold a model of about 190 M parameters under DeepSpeed ZeRO-2 and save it, each way in turn. The
stall is what training waits for; the total ends when the checkpoint may be used. Only ours has been flushed,
read back and hashed by then, so its total is the longest, and nobody waits for it. `slowed` is what our copy
takes from the step that it overlaps, where both want the same cores and memory, as here.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from case_studies.benchmarks._jobs import result_of
from components import quiet, storage
from components.data import tokenizer
from components.jobs import Job
from components.observability import canvas
from components.observability.canvas import SMALL, colour
from components.observability.provenance import machine, versions
from components.records import git_commit

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "case_studies" / "results" / "checkpoints"
MODEL = {
    "hidden_size": 1024,
    "num_layers": 12,
    "num_heads": 8,
    "intermediate_size": 2816,
    "context_length": 64,
}
VOCABULARY = 32_000
TITLES = {
    "deepspeed": "DeepSpeed save_checkpoint",
    "dcp": "torch DCP save",
    "dcp_async": "torch DCP async_save",
    "stanchion": "Stanchion",
}
MOST_STALL, MOST_HASHING = 0.05, 0.10
logger = logging.getLogger(__name__)


def measured(folder: Path, *, model: dict[str, int], vocabulary: int, rounds: int) -> dict[str, Any]:
    """Every way in every round, and whether the bars hold; the first round warms up and does not count."""
    place = folder / "checkpoints"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    learnt = tokenizer.train(
        ["a tokenizer, because a checkpoint holds one"], tokenizer.Config(vocab_size=300)
    )
    tokenizer.save(learnt, place)
    settings = {
        "model": model,
        "vocabulary": vocabulary,
        "rounds": rounds + 1,
        "place": str(place),
        "tokenizer": str(place),
    }
    result = result_of(Job("save", "case_studies.benchmarks.save_ranks", settings, place / "job", 2))
    shutil.rmtree(place)
    first, *counted = result.pop("rounds")
    share = median(one["stanchion"]["stalled"] / one["deepspeed"]["stalled"] for one in counted)
    hashing = median(one["stanchion"]["hashing"] / one["stanchion"]["total"] for one in counted)
    return {
        **result,
        "first_round": first,
        "rounds": counted,
        "medians": {name: _middle(counted, name) for name in TITLES},
        "stall_over_deepspeed": round(share, 4),
        "most_stall": MOST_STALL,
        "hashing_share": round(hashing, 4),
        "most_hashing": MOST_HASHING,
        "holds": share <= MOST_STALL and hashing < MOST_HASHING,
    }


def drawn(found: dict[str, Any]) -> str:
    """A bar a way: what training waits for, and up to when the checkpoint may not be used."""
    height = 62 + 58 + 44 * len(TITLES)
    with canvas.style("checkpoints"):
        axes = canvas.axes(
            f"Training waits {100 * found['stall_over_deepspeed']:.1f} % as long as for DeepSpeed's own save",
            f"seconds to save {found['bytes'] / 1e9:.1f} GB: dark, training waits; light, it goes on",
            height=height,
            margin={"left": 190, "right": 110, "bottom": 58},
        )
        for row, name in enumerate(TITLES):
            shade = colour("blue" if name == "stanchion" else "slate")
            stalled, total = (found["medians"][name][key] for key in ("stalled", "total"))
            axes.barh([row], [total], height=0.62, color=shade, alpha=0.25)
            axes.barh([row], [stalled], height=0.62, color=shade)
            told = f" {stalled:.2f} of {total:.1f}"
            if (slowed := found["medians"][name].get("slowed")) is not None:
                told += f"\n beside it a step\n takes {slowed:+.1f}"
            axes.text(total, row, told, va="center", color=shade, size=SMALL)
        axes.set_yticks(range(len(TITLES)), list(TITLES.values()))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        told = f"{found['machine']['processor']}, {found['commit'] or 'no commit'}, {found['at'][:10]}"
        axes.figure.text(4 / canvas.WIDTH, 8 / height, told, size=SMALL, color=colour("muted"))
        return canvas.svg(axes.figure, "checkpoints", alone=True)


def _middle(rounds: list[dict[str, Any]], name: str) -> dict[str, float]:
    keys = rounds[0][name]
    return {key: round(median(one[name][key] for one in rounds), 4) for key in keys}


def main() -> int:
    """Measure, keep, and say whether the bars hold; 1 when one does not."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--folder", type=Path, default=ROOT / "runs" / ".bench")
    asked.add_argument("--results", type=Path, default=RESULTS)
    chosen = asked.parse_args()
    at, commit = datetime.now(UTC).isoformat(timespec="seconds"), git_commit()
    found = measured(chosen.folder, model=MODEL, vocabulary=VOCABULARY, rounds=chosen.rounds)
    found |= {"at": at, "commit": commit, "machine": machine(), "versions": versions()}
    storage.write_json(str(chosen.results / "checkpoints.json"), found)
    storage.write_text(str(chosen.results / "checkpoints.svg"), drawn(found) + "\n")
    for what, share, most in (
        ("stall over DeepSpeed's save", found["stall_over_deepspeed"], MOST_STALL),
        ("hashing over the save", found["hashing_share"], MOST_HASHING),
    ):
        holds = "holds" if share <= most else "DOES NOT HOLD"
        logger.info("%s: %.3f (at most %.2f): %s", what, share, most, holds)
    logger.info("figures and picture: %s", chosen.results)
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    quiet.apply()
    sys.exit(main())
