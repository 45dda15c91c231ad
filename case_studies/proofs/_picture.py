"""One picture of all proofs: what was tried, how often, and where the bars lie."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from components.observability import canvas
from components.observability.canvas import SMALL, WIDTH, colour

ROW = 46
HEAD = 58
PANEL = 190
DRILLS = 320
Result = Mapping[str, Any]


def draw(results: Sequence[Result]) -> str:
    """A line for each claim; under them damage by kind of file, how blocks mix, when faults are found."""
    known = {str(result["name"]): result for result in results}
    panels = [name for name in ("damage", "shuffle_quality") if name in known]
    below = DRILLS + 40 if "drills" in known else 0
    height = HEAD + ROW * len(results) + (PANEL + 40 if panels else 0) + below + 24
    with canvas.style("proofs"):
        figure = canvas.blank(WIDTH, height)
        held = sum(bool(result["holds"]) for result in results)
        canvas.headline(figure, f"{held} of {len(results)} claims hold", "tried in full")
        for place, result in enumerate(results):
            _line(figure, result, 1 - (HEAD + ROW * place) / height, height)
        for place, name in enumerate(panels):
            left = (70 if place == 0 else WIDTH / 2 + 52) / WIDTH
            low, tall = (below + 62) / height, (PANEL - 54) / height
            PANELS[name](figure.add_axes((left, low, (WIDTH / 2 - 92) / WIDTH, tall)), known[name]["figures"])
        if below:
            axes = figure.add_axes((150 / WIDTH, 62 / height, (WIDTH - 190) / WIDTH, (DRILLS - 54) / height))
            _detection(axes, known["drills"]["figures"])
        _caption(figure, results, height)
        return canvas.svg(figure, "proofs", alone=True)


def _line(figure: Any, result: Result, top: float, height: float) -> None:
    shade = colour("green" if result["holds"] else "red")
    figure.text(4 / WIDTH, top, "■", size=SMALL, va="top", color=shade)
    claim = textwrap.wrap(str(result["claim"]), 76)[:2]
    figure.text(20 / WIDTH, top, "\n".join(claim), size=SMALL, va="top", color=colour("ink"))
    below = top - (15 * len(claim)) / height
    figure.text(20 / WIDTH, below, _figures(result), size=9, va="top", color=colour("muted"))


def _figures(result: Result) -> str:
    """The numbers of a claim in one line."""
    name, found = result["name"], result["figures"]
    if name == "elastic_order":
        cases = found["cases"].values()
        told = ", ".join(
            f"{sum(one[key] for one in cases)} {key}" for key in ("replayed", "lost", "different")
        )
        return f"{sum(one['cases'] for one in cases):,} cases: {told}"
    if name == "resume_cost":
        worst = max(
            found["order"]["seconds_at_90"], *(one["seconds_at_90"] for one in found["real"].values())
        )
        state = max(one["state_bytes"] for one in found["real"].values())
        return f"at most {1000 * worst:.0f} ms of {1000 * found['most_seconds']:.0f}, {state} bytes of state"
    if name == "damage":
        return f"{found['damages']:,} damages of a real data set"
    if name == "checkpoint_damage":
        told = f"{found['refused']:,} of {found['damages']:,} refused by name"
        return f"{told}, {found['tensors_hit']:,} of them with the tensor; {found['unpickled']} unpickled"
    if name == "killed_saves":
        told = f"{found['kills']} kills, {found['kills_while_saving']} while saving"
        again = f"{found['resumed']} resumed, {found['began_anew']} began anew"
        return f"{told}; {again}; {found['steps_compared']:,} steps to the last bit"
    if name == "failed_saves":
        failed = sum(case["failed_saves"] for case in found["cases"].values())
        return f"{len(found['cases'])} cases, {failed} failed saves, each with its step and cause"
    if name == "cancelled_flows":
        ends = [one for group in found["ends"].values() for one in group]
        last = max(one["seconds_to_last_process"] for one in ends)
        return f"{len(ends)} runs ended, the last process of each gone within {last:.1f} s"
    if name == "killed_ranks":
        _, usual, worst = found["seconds_to_a_new_step"]
        return f"{found['kills']} kills: {usual:.1f} s at the median, at most {worst:.1f} s"
    if name == "drills":
        kinds, calm = found["by_kind"].values(), found["healthy"].values()
        right = sum(one["right"] for one in found["journal"] if one["detected"])
        alarms = sum(len(one["alarms"]) for one in calm)
        quiet = f"{alarms} alarms in {sum(one['steps'] for one in calm):,} healthy steps"
        return f"{found['drills']} drills of {len(kinds)} kinds, {right} on the right rank; {quiet}"
    if name == "reshape":
        fp32, bf16 = (found[precision]["worst"] for precision in ("fp32", "bf16"))
        order = found["bf16"]["between_uninterrupted_runs"]
        told = f"at most {fp32:.0e} in fp32; {bf16:.0e} in bf16"
        return f"{told}, where uninterrupted runs of 1 and 2 ranks differ by {order:.0e}"
    if name == "shuffle_quality":
        least = min(row["entropy"] for row in _default_blocks(found))
        return f"entropy at least {least:.2f} of a uniform shuffle with shards of 256 items; less with larger"
    return f"{result['seconds']:.0f} s"


def _default_blocks(found: Result) -> list[Result]:
    return [
        row for row in found["measured"] if row["items_per_shard"] == 256 and row["block_items"] == 1 << 18
    ]


def _damage(axes: Any, found: Result) -> None:
    """Of each kind of file, what the reader of token sequences made of its damage."""
    kinds = ("tar", "index", "manifest", "other")
    for place, kind in enumerate(kinds):
        row = found["outcomes"][f"{kind}: sequences"]
        start = 0
        for name, shade in (("refused", "blue"), ("identical", "green")):
            axes.barh(place, row.get(name, 0), left=start, height=0.62, color=colour(shade))
            start += row.get(name, 0)
        other = sum(row.values()) - start
        axes.barh(place, other, left=start, height=0.62, color=colour("red"))
    axes.set_yticks(range(len(kinds)), kinds)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("damages: blue refused, green harms nothing read", size=9)
    axes.set_title("A reader after a damage", loc="left", size=SMALL, color=colour("ink"))


def _shuffle(axes: Any, found: Result) -> None:
    """Entropy of neighbours over a uniform shuffle's, by items in a block, at ten million items."""
    for items, shade in ((256, "blue"), (1000, "orange"), (10_000, "pink")):
        rows = [row for row in found["measured"] if row["items_per_shard"] == items and row["items"] > 9e6]
        axes.plot([row["block_items"] for row in rows], [row["entropy"] for row in rows], color=colour(shade))
        axes.text(
            rows[-1]["block_items"] * 1.15, rows[-1]["entropy"], f"{items:,}", color=colour(shade), size=9
        )
    axes.axhline(found["bar"], color=colour("ink"), linewidth=1, linestyle=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_xlabel("items in a block; lines: items in a shard", size=9)
    axes.set_title("Mixing, uniform is 1", loc="left", size=SMALL, color=colour("ink"))


def _detection(axes: Any, found: Result) -> None:
    """Every drill by its kind: seconds until it was found, or steps where it only made a rank slow."""
    kinds = list(found["by_kind"])
    for place, kind in enumerate(kinds):
        drills = [one for one in found["journal"] if one["kind"] == kind and one["detected"]]
        if kind in found["counted_in_steps"]:
            _, usual, _ = found["by_kind"][kind]["steps_to_detect"]
            axes.text(0.03, place, f"after {usual:g} slow steps", size=9, va="center", color=colour("muted"))
            continue
        for one in drills:
            shade = colour("blue" if one["right"] else "red")
            axes.plot(one["seconds_to_detect"], place, "o", color=shade, alpha=0.5, markersize=4)
    bar = found["bars"]["seconds"]
    axes.axvline(bar, color=colour("ink"), linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], size=9)
    axes.invert_yaxis()
    axes.set_xlim(0, bar * 1.2)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(
        "seconds from the strike to its detection; dashed: the bar; red: another rank named", size=9
    )
    axes.set_title("Faults in real ranks", loc="left", size=SMALL, color=colour("ink"))


PANELS = {"damage": _damage, "shuffle_quality": _shuffle}


def _caption(figure: Any, results: Sequence[Result], height: float) -> None:
    newest = max(results, key=lambda result: str(result["date"]))
    told = f"{newest['machine']['processor']}, {newest['date']}, commit {str(newest['commit'])[:10]}"
    figure.text(4 / WIDTH, 8 / height, told, size=9, va="bottom", color=colour("muted"))
