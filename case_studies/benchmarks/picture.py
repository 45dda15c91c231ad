"""The picture of the comparison: a bar a loader, the longest first, what is verified in another colour."""

from __future__ import annotations

from typing import Any

from components.observability import canvas
from components.observability.canvas import SMALL, colour

ROW = 30


def drawn(found: dict[str, Any]) -> str:
    """Samples a CPU-second of one process, shuffled."""
    rows = sorted(_rows(found["loaders"]), key=lambda row: -row[1])
    height = 62 + 58 + ROW * max(len(rows), 1)
    with canvas.style("data-loaders"):
        axes = canvas.axes(
            title(found),
            "thousand documents of 1 KB per CPU-second, one process, shuffled",
            height=height,
            margin={"left": 160, "right": 60, "bottom": 58},
        )
        axes.barh(
            [row[0] for row in rows],
            [row[1] / 1000 for row in rows],
            height=0.66,
            color=[colour(row[2]) for row in rows],
        )
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        for place, (_, rate, name) in enumerate(rows):
            axes.text(rate / 1000, place, f" {rate / 1000:.0f}", va="center", color=colour(name), size=SMALL)
        axes.figure.text(4 / canvas.WIDTH, 8 / height, caption(found), size=SMALL, color=colour("muted"))
        return canvas.svg(axes.figure, "data-loaders", alone=True)


def title(found: dict[str, Any]) -> str:
    """The message, from the figures."""
    ratio = {bar["under"]: bar["measured"] for bar in found["bars"] if bar["over"] == "stanchion"}
    said = [f"{ratio[name]:.1f}x {name}" for name in ("litdata", "webdataset") if ratio.get(name)]
    if not said:
        return "Documents read per CPU-second"
    return f"Checking every document, Stanchion reads at {' and '.join(said)}"


def caption(found: dict[str, Any]) -> str:
    """Hardware, commit, date, and who is missing."""
    missing = [loader["title"] for loader in found["loaders"].values() if "absent" in loader]
    absent = f"; absent: {', '.join(missing)}" if missing else ""
    return f"{found['machine']['processor']}, {found['commit'] or 'no commit'}, {found['at'][:10]}{absent}"


def _rows(loaders: dict[str, Any]) -> list[tuple[str, float, str]]:
    return [
        (loader["title"], float(loader["medians"]["0"]["samples_per_cpu_second"]), _colour(name, loader))
        for name, loader in loaders.items()
        if "0" in loader.get("medians", {})
    ]


def _colour(name: str, loader: dict[str, Any]) -> str:
    if not name.startswith("stanchion"):
        return "slate"
    return "blue" if loader["verified"] else "orange"
