"""One palette, one width, one way to make an SVG: what every figure of a report is drawn on.

Colours are safe for colour-blind readers and become CSS variables, so that a figure follows the page into the
dark; the same data give the same bytes.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

WIDTH = 480
"""User units across every figure of a report; two fit side by side, one fits a phone."""

PALETTE = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9198a1"),
    "rule": ("#d1d9e0", "#3d444d"),
    "page": ("#ffffff", "#0d1117"),
    "panel": ("#f6f8fa", "#161b22"),
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#b85c00", "#e69f00"),
    "green": ("#00795a", "#2fbf94"),
    "pink": ("#a8467f", "#e08fc0"),
    "slate": ("#6b7785", "#a3afbd"),
    "red": ("#c4302b", "#ff7b72"),
}
"""Name: colour on a light page, colour on a dark one."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
TEXT = 12.0
SMALL = 11.0
MARGIN = {"left": 46, "right": 104, "top": 62, "bottom": 40}
"""Units around the axes: title above, direct labels to the right."""

SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": PALETTE["rule"][0],
    "axes.labelcolor": PALETTE["muted"][0],
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": PALETTE["rule"][0],
    "grid.linewidth": 0.6,
    "xtick.color": PALETTE["muted"][0],
    "ytick.color": PALETTE["muted"][0],
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.8,
}


def colour(name: str) -> str:
    """A colour of the palette as matplotlib takes it."""
    return PALETTE[name][0]


def css(*, dark: bool) -> str:
    """The palette as CSS declarations."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in PALETTE.items())


@contextmanager
def style(name: str) -> Iterator[None]:
    """Draw under the house settings; `name` makes the identifiers of this figure its own."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        yield


def blank(width: float, height: float) -> Any:
    """An empty figure, one unit a point."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72))


def axes(title: str, units: str, *, height: float = 270, margin: Mapping[str, float] | None = None) -> Any:
    """Axes under a title that says the message and a line that says what is measured."""
    figure, space = blank(WIDTH, height), {**MARGIN, **(margin or {})}
    wide, tall = WIDTH - space["left"] - space["right"], height - space["top"] - space["bottom"]
    drawn = figure.add_axes((space["left"] / WIDTH, space["bottom"] / height, wide / WIDTH, tall / height))
    headline(figure, title, units)
    return drawn


def headline(figure: Any, title: str, units: str = "") -> None:
    """The message at the top left of a figure, and under it what its axes measure."""
    height = figure.get_figheight() * 72
    lines = textwrap.wrap(title, 64)[:2]
    figure.text(
        4 / WIDTH, 1 - 5 / height, "\n".join(lines), size=13, weight="bold", va="top", color=colour("ink")
    )
    below = 24 if len(lines) == 1 else 40
    figure.text(4 / WIDTH, 1 - below / height, units, size=SMALL, va="top", color=colour("muted"))


def label_ends(drawn: Any, ends: list[tuple[float, str, str]], *, gap: float = 0.075) -> None:
    """Name lines `(y, text, colour name)` at the right edge, moved apart where they would touch."""
    low, high = drawn.get_ylim()
    placed = float("-inf")
    for y, text, name in sorted(ends):
        place = max((y - low) / (high - low), placed + gap)
        placed = place
        drawn.text(1.015, place, text, transform=drawn.transAxes, color=colour(name), va="center", size=SMALL)


def svg(figure: Any, name: str, *, alone: bool = False) -> str:
    """The figure as an SVG element; one that stands alone brings its own dark colours."""
    text = io.StringIO()
    figure.savefig(
        text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Type": None}
    )
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"font-family: [^;\"]+", f"font-family: {FONT}", body)
    body = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%" role="img"', body, count=1)
    body = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", body)
    for token, (light, _) in PALETTE.items():
        body = body.replace(f": {light}", f": var(--{token}, {light})")
    return body.replace("<defs>", f"{_own_colours()}<defs>", 1) if alone else body


def _own_colours() -> str:
    dark = f"@media (prefers-color-scheme: dark) {{ svg {{ {css(dark=True)} }} }}"
    return f"<style>svg {{ {css(dark=False)} }} {dark}</style>"
