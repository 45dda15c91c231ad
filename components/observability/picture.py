"""Pictures of a whole run, drawn from its records: the chain of stages with their verdicts, and the lineage.

`python -m components.observability.picture RUN_FOLDER OUT.svg` draws the chain of a real run for the README.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from components import storage
from components.observability import canvas, readings
from components.observability.canvas import SMALL, WIDTH, colour
from components.records import Artifact, Record, RunFolder, Verdict

STAGES = {
    "shard_dataset": "Shard",
    "pretrain": "Pre-train",
    "sft": "Fine-tune",
    "rl": "Reinforce",
    "deploy": "Deploy",
    "assess": "Assess",
}
"""The stages of a whole run, in order, and what people call them."""

BOX, GAP, LINE = 148, 14, 16


def chain_picture(records: Iterable[Record]) -> str:
    """The chain of a run: a box a stage, what it took, what its gates said, and what it handed on."""
    left_by = {record.stage: record for record in records}
    most = max((len(record.verdicts) for stage, record in left_by.items() if stage in STAGES), default=0)
    width, height = len(STAGES) * (BOX + GAP) - GAP + 2, 88 + LINE * max(most, 1)
    with canvas.style("chain"):
        figure = canvas.blank(width, height)
        drawn = _sheet(figure, width, height)
        for position, (stage, title) in enumerate(STAGES.items()):
            x = 1 + position * (BOX + GAP)
            _box(drawn, x, height - 2, title, left_by.get(stage))
            if position:
                _arrow(drawn, (x - GAP, 26), (x, 26))
        return canvas.svg(figure, "chain", alone=True)


def lineage(records: Iterable[Record]) -> str:
    """Which artifact was made from which, by digest: a row each, an arc from what it was made of."""
    rows = _made(records)
    height = 56 + 34 * len(rows)
    with canvas.style("lineage"):
        figure = canvas.blank(WIDTH, height)
        canvas.headline(figure, _lineage_title(rows), "artifact, first digits of its SHA-256, and its maker")
        drawn = _sheet(figure, WIDTH, height)
        heights = {artifact.digest: 66.0 + 34 * row for row, (_, artifact) in enumerate(rows)}
        for record, artifact in rows:
            _row(drawn, heights[artifact.digest], record, artifact)
            for source in {used.digest for used in record.inputs} & set(heights):
                _arc(drawn, heights[source], heights[artifact.digest])
        return _with_whole_digests(canvas.svg(figure, "lineage"), [artifact for _, artifact in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the chain of the run in a folder."""
    parser = argparse.ArgumentParser(prog="python -m components.observability.picture", description=__doc__)
    parser.add_argument("run", help="folder or URL of a run, the one that holds records/")
    parser.add_argument("out", help="SVG file to write")
    asked = parser.parse_args(arguments)
    root, _, run_id = asked.run.rstrip("/").rpartition("/")
    records = RunFolder(root or ".", run_id).records()
    if not records:
        sys.stderr.write(
            f"no records under {asked.run}/records; give a run's folder, as `stanchion run` prints it\n"
        )
        return 1
    storage.write_text(asked.out, chain_picture(records))
    return 0


def _sheet(figure: Any, width: float, height: float) -> Any:
    """Axes that are the whole figure, one unit a point, y downwards."""
    drawn = figure.add_axes((0, 0, 1, 1))
    drawn.set_xlim(0, width)
    drawn.set_ylim(height, 0)
    drawn.axis("off")
    return drawn


def _box(drawn: Any, x: float, height: float, title: str, record: Record | None) -> None:
    from matplotlib.patches import FancyBboxPatch

    edge = "rule" if record is None or record.status == "completed" else "red"
    drawn.add_patch(
        FancyBboxPatch(
            (x + 4, 5), BOX - 8, height - 8, boxstyle="round,pad=3", fc=colour("panel"), ec=colour(edge)
        )
    )
    drawn.text(x + 10, 26, title, size=14, weight="bold", va="center", color=colour("ink"))
    state = "not run" if record is None else f"{record.seconds:.0f} s"
    drawn.text(x + BOX - 10, 26, state, size=SMALL, va="center", ha="right", color=colour("muted"))
    if record is not None:
        drawn.text(x + 10, 48, _handed_on(record), size=10, va="center", color=colour("muted"))
        drawn.text(x + 10, 67, readings.headline(record), size=SMALL, va="center", color=colour("ink"))
        for line, verdict in enumerate(record.verdicts):
            _tick(drawn, x + 10, 90 + LINE * line, verdict)


def _tick(drawn: Any, x: float, y: float, verdict: Verdict) -> None:
    mark, name = ("✓", "green") if verdict.passed else ("✗", "red")
    drawn.text(x, y, mark, size=10, va="center", color=colour(name))
    drawn.text(x + 12, y, verdict.gate.replace("_", " "), size=9.5, va="center", color=colour("ink"))


def _handed_on(record: Record) -> str:
    """What the next stage reads, or why there is none."""
    if record.status != "completed":
        return record.status
    links = _links(record)
    return " ".join((links[-1].name, links[-1].digest[:8])) if links else ""


def _links(record: Record) -> list[Artifact]:
    """What a later stage may read; pages are for people."""
    return [artifact for artifact in record.outputs if not artifact.name.endswith("_page")]


def _arrow(drawn: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    arrow = {"arrowstyle": "-|>", "color": colour("muted"), "shrinkA": 0, "shrinkB": 0, "lw": 1.2}
    drawn.annotate("", xy=end, xytext=start, arrowprops=arrow)


def _made(records: Iterable[Record]) -> list[tuple[Record, Artifact]]:
    """What the stages of a run made, in their order; a digest is shown once."""
    order = list(STAGES)
    known = [record for record in records if record.stage in STAGES]
    rows: dict[str, tuple[Record, Artifact]] = {}
    for record in sorted(known, key=lambda one: order.index(one.stage)):
        for artifact in _links(record):
            rows.setdefault(artifact.digest, (record, artifact))
    return list(rows.values())


def _lineage_title(rows: list[tuple[Record, Artifact]]) -> str:
    if not rows:
        return "Nothing has been made yet"
    first, last = rows[0][1], rows[-1][1]
    return f"The {last.name} goes back to {first.name} {first.digest[:8]}, link by link"


def _row(drawn: Any, y: float, record: Record, artifact: Artifact) -> None:
    drawn.plot([52], [y], "o", color=colour("blue"), markersize=7)
    drawn.text(70, y, artifact.name.replace("_", " "), weight="bold", va="center", color=colour("ink"))
    drawn.text(190, y, artifact.digest[:12], va="center", color=colour("muted"), family="DejaVu Sans Mono")
    drawn.text(WIDTH - 8, y, record.stage, va="center", ha="right", color=colour("muted"))


def _arc(drawn: Any, start: float, end: float) -> None:
    bend = 0.0 if end - start < 40 else 0.35
    arrow = {
        "arrowstyle": "-|>",
        "color": colour("slate"),
        "connectionstyle": f"arc3,rad={bend}",
        "shrinkA": 5,
        "shrinkB": 5,
        "lw": 1.2,
    }
    drawn.annotate("", xy=(52, end), xytext=(52, start), arrowprops=arrow)


def _with_whole_digests(svg: str, artifacts: list[Artifact]) -> str:
    """The whole digest appears when a reader points at its first digits."""
    for artifact in artifacts:
        short, whole = re.escape(artifact.digest[:12]), artifact.digest
        svg = re.sub(rf">{short}</text>", f"><title>{whole}</title>{whole[:12]}</text>", svg)
    return svg


if __name__ == "__main__":
    sys.exit(main())
