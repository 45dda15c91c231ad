"""The picture of a case study: both sides on one clock, what happened when, and how far each had come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from components.observability import canvas
from components.study import Event, Side, Study

WIDTH, LEFT, RIGHT = 960.0, 52.0, 936.0
LANE, TEXTS, BAR, LINE = 178.0, 34.0, 80.0, 106.0
BAR_HEIGHT, LINE_HEIGHT, AXIS = 20.0, 48.0, 34.0
LETTER = 6.4
"""Mean width of a letter at 12 units, for what fits where."""
COLOURS = {"starting": "slate", "healthy": "green", "harmed": "red", "recovering": "orange"}
MARKS = {"fault": "red", "blind": "slate", "seen": "blue", "mended": "green", "plain": "muted"}


def timeline(study: Study, pattern: str, *, alone: bool = False) -> str:
    """Two lanes as one SVG element; one that stands alone brings its own colours and its title."""
    sides = [("Without the pattern", study.without), (f"With {pattern}", study.with_pattern)]
    end = max((span.end for _, side in sides for span in side.spans), default=1.0)
    most = max((step for _, side in sides for _, step in side.progress), default=1.0)
    height = LANE * len(sides) + AXIS
    parts = [_lane(side, title, LANE * row, end, most) for row, (title, side) in enumerate(sides)]
    body = "".join(parts) + _axis(end, height - AXIS)
    label = escape(f"{sides[0][0]} and {sides[1][0]}, seconds since the start")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="100%" role="img"'
    )
    dark = f"@media (prefers-color-scheme: dark) {{ svg {{ {canvas.css(dark=True)} }} }}"
    style = f"<style>svg {{ {canvas.css(dark=False)} }} {dark}</style>" if alone else ""
    font = f'font-family="{escape(canvas.FONT)}" font-size="12"'
    return f'{head} aria-label="{label}" {font}>{style}{body}</svg>'


def _lane(side: Side, title: str, top: float, end: float, most: float) -> str:
    bold = f'font-weight="600" font-size="14" {_fill("ink")}'
    words = f'<text x="0" y="{top + 15:g}" {bold}>{escape(title)}</text>'
    spans = "".join(
        _span(_x(span.start, end), _x(span.end, end), top + BAR, COLOURS[span.state], span.text)
        for span in side.spans
    )
    last = max((span.end for span in side.spans), default=end)
    progress = _progress(side.progress, top + LINE, last, end, most)
    return words + spans + _events(side.events, top, end) + progress


def _span(x: float, to: float, y: float, colour: str, text: str) -> str:
    wide = max(to - x, 1.0)
    bar = f'<rect x="{x:.1f}" y="{y:g}" width="{wide:.1f}" height="{BAR_HEIGHT:g}" rx="3" {_fill(colour)}/>'
    if len(text) * LETTER + 14 > wide:
        return bar
    return bar + f'<text x="{x + 10:.1f}" y="{y + 14:g}" {_fill("page")}>{escape(text)}</text>'


def _events(events: Sequence[Event], top: float, end: float) -> str:
    """Marks on the bar, their words above it: from the right, each above those that it would touch."""
    parts: list[str] = []
    later: list[tuple[float, float, int]] = []
    for event in sorted(events, key=lambda one: -one.at):
        x, text = _x(event.at, end), f"{event.at:.1f} s  {event.text}"
        left = x if x + len(text) * LETTER < RIGHT else x - len(text) * LETTER
        right = left + len(text) * LETTER + 12
        row = 1 + max((row for other, stem, row in later if other < right or stem < right), default=-1)
        later.append((left, x, row))
        parts.append(_mark(x, left, top + TEXTS + 15 * (2 - row), top + BAR, text, MARKS[event.kind]))
    return "".join(parts)


def _mark(x: float, left: float, y: float, bar: float, text: str, colour: str) -> str:
    anchor = "start" if left >= x else "end"
    nudge = 6 if left >= x else -6
    stem = f'<path d="M{x:.1f} {y - 9:g}V{bar + BAR_HEIGHT:g}" {_stroke(colour)} stroke-width="1.5"/>'
    middle, rim = bar + BAR_HEIGHT / 2, 'stroke="var(--page, #fff)"'
    dot = f'<circle cx="{x:.1f}" cy="{middle:g}" r="4.5" {_fill(colour)} {rim}/>'
    place = f'x="{x + nudge:.1f}" y="{y:g}" text-anchor="{anchor}"'
    words = f"<text {place} {_fill('ink')}>{escape(text)}</text>"
    return stem + dot + words


def _progress(points: Sequence[tuple[float, float]], top: float, last: float, end: float, most: float) -> str:
    """Steps done over time; where it is flat, nothing moved."""
    if not points:
        return ""
    bottom = top + LINE_HEIGHT
    placed = [(_x(at, end), bottom - step / most * (LINE_HEIGHT - 8)) for at, step in points]
    path = f"M{LEFT:g} {bottom:g}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in placed) + f"H{_x(last, end):.1f}"
    base = f'<path d="M{LEFT:g} {bottom:g}H{RIGHT:g}" {_stroke("rule")}/>'
    small = f'text-anchor="end" font-size="11" {_fill("muted")}'
    scale = "".join(
        f'<text x="{LEFT - 8:g}" y="{y + 4:.1f}" {small}>{text}</text>'
        for y, text in ((bottom, "0"), (top + 8, f"step {most:g}"))
    )
    return base + scale + f'<path d="{path}" fill="none" {_stroke("blue")} stroke-width="2"/>'


def _axis(end: float, top: float) -> str:
    step, small = _tick_step(end), f'font-size="11" {_fill("muted")}'
    ticks = [step * n for n in range(int(end / step) + 1)]
    return "".join(
        f'<text x="{_x(at, end):.1f}" y="{top + 16:g}" text-anchor="middle" {small}>{at:g} s</text>'
        for at in ticks
    )


def _tick_step(end: float) -> float:
    """A round number of seconds that makes about eight ticks."""
    raw = max(end, 0.001) / 8
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step for factor in (1, 2, 5, 10) if (step := factor * power) >= raw)


def _x(at: float, end: float) -> float:
    return LEFT + (RIGHT - LEFT) * at / end


def _fill(name: str) -> str:
    return f'fill="var(--{name}, {canvas.PALETTE[name][0]})"'


def _stroke(name: str) -> str:
    return f'stroke="var(--{name}, {canvas.PALETTE[name][0]})"'
