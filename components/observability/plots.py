"""Figures of a report: plain numbers in, one SVG out, each with one message that its title says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from components.observability import canvas
from components.observability.canvas import SMALL, WIDTH, colour, label_ends

Points = Sequence[tuple[float, float]]

PHASE_COLOURS = {
    "data": "orange",
    "forward": "blue",
    "backward": "green",
    "communication": "red",
    "optimizer": "pink",
    "rollout": "blue",
    "evaluate": "slate",
    "snapshot": "slate",
    "flush": "slate",
    "checkpoint": "slate",
}


def loss_curve(training: Points, held_out: Points, unigram: float | None) -> str:
    """Loss by step, `(step, nats per token)`, over the bar that a unigram model sets."""
    with canvas.style("loss"):
        drawn = canvas.axes(_loss_title(training, held_out, unigram), "loss, nats per token")
        steps, losses = zip(*training, strict=True)
        drawn.plot(steps, losses, color=colour("slate"), alpha=0.35, linewidth=0.8)
        smooth = _smoothed(losses)
        drawn.plot(steps, smooth, color=colour("blue"))
        ends = [(smooth[-1], "training", "blue")]
        if held_out:
            drawn.plot(*zip(*held_out, strict=True), "o", color=colour("orange"), markersize=5)
            ends.append((held_out[-1][1], f"held out {held_out[-1][1]:.2f}", "orange"))
        if unigram is not None:
            drawn.axhline(unigram, color=colour("ink"), linewidth=1, linestyle=(0, (4, 3)))
            ends.append((unigram, f"unigram {unigram:.2f}", "ink"))
        drawn.set_xlabel("optimizer step")
        label_ends(drawn, ends)
        return canvas.svg(drawn.figure, "loss")


def step_time(seconds_by_rank: Mapping[int, Mapping[str, float]]) -> str:
    """Mean seconds of one step by phase, a bar a rank."""
    ranks = sorted(seconds_by_rank)
    phases = _phases(seconds_by_rank)
    with canvas.style("step-time"):
        margin = {"left": 52, "right": 16, "top": 72}
        drawn = canvas.axes(
            _step_title(seconds_by_rank),
            "mean milliseconds of a step, by phase",
            height=118 + 34 * len(ranks),
            margin=margin,
        )
        start = [0.0] * len(ranks)
        for phase in phases:
            spent = [1000 * seconds_by_rank[rank].get(phase, 0.0) for rank in ranks]
            shade = colour(PHASE_COLOURS.get(phase, "slate"))
            drawn.barh([f"rank {rank}" for rank in ranks], spent, left=start, height=0.62, color=shade)
            start = [a + b for a, b in zip(start, spent, strict=True)]
        drawn.invert_yaxis()
        drawn.grid(axis="y", visible=False)
        _key(drawn, [(phase, PHASE_COLOURS.get(phase, "slate")) for phase in phases])
        return canvas.svg(drawn.figure, "step-time")


def reward_curve(reward: Points, parses: Points, kl: Points) -> str:
    """Mean reward and share of completions that parse by update, and under them the drift."""
    with canvas.style("reward"):
        figure = canvas.blank(WIDTH, 330)
        canvas.headline(figure, _reward_title(reward, kl), "reward and share that parses, 0 to 1")
        left, wide = 46 / WIDTH, (WIDTH - 150) / WIDTH
        upper = figure.add_axes((left, 140 / 330, wide, 128 / 330))
        ends = []
        for points, text, name in ((reward, "reward", "blue"), (parses, "parses", "green")):
            if points:
                _line_with_smooth(upper, points, name)
                ends.append((_smoothed([y for _, y in points])[-1], text, name))
        upper.tick_params(labelbottom=False)
        label_ends(upper, ends, gap=0.13)
        lower = figure.add_axes((left, 40 / 330, wide, 70 / 330), sharex=upper)
        drift = "divergence from the start, nats per token"
        lower.set_title(drift, loc="left", size=SMALL, pad=5, color=colour("muted"))
        if kl:
            lower.plot(*zip(*kl, strict=True), color=colour("orange"))
            label_ends(lower, [(kl[-1][1], f"KL {kl[-1][1]:.3f}", "orange")])
        lower.set_xlabel("update")
        return canvas.svg(figure, "reward")


def latency(first_token_seconds: Sequence[float]) -> str:
    """How many requests had their first token by when."""
    waits = sorted(1000 * value for value in first_token_seconds)
    with canvas.style("latency"):
        half, most = _quantile(waits, 0.5), _quantile(waits, 0.99)
        title = f"First token: half within {half:.0f} ms, 99% within {most:.0f} ms"
        drawn = canvas.axes(title, f"share of {len(waits)} requests answered, %", margin={"right": 40})
        share = [100 * (position + 1) / len(waits) for position in range(len(waits))]
        drawn.step([waits[0], *waits], [0, *share], where="post", color=colour("blue"))
        for quantile, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
            at = _quantile(waits, quantile)
            drawn.plot([at], [100 * quantile], "o", color=colour("orange"), markersize=5)
            drawn.annotate(
                name,
                (at, 100 * quantile),
                xytext=(7, -11),
                textcoords="offset points",
                color=colour("orange"),
            )
        drawn.set_ylim(0, 104)
        drawn.set_xlim(left=0)
        drawn.set_xlabel("milliseconds to the first token")
        return canvas.svg(drawn.figure, "latency")


def _line_with_smooth(drawn: Any, points: Points, name: str) -> None:
    xs, ys = zip(*points, strict=True)
    drawn.plot(xs, ys, color=colour(name), alpha=0.3, linewidth=0.8)
    drawn.plot(xs, _smoothed(ys), color=colour(name))


def _key(drawn: Any, entries: Sequence[tuple[str, str]]) -> None:
    """Names of the colours in a row under the title, where nothing is drawn over."""
    figure, height = drawn.figure, drawn.figure.get_figheight() * 72
    at = 4.0
    for text, name in entries:
        figure.text(at / WIDTH, 1 - 44 / height, "■", size=SMALL, va="top", color=colour(name))
        figure.text((at + 13) / WIDTH, 1 - 44 / height, text, size=SMALL, va="top", color=colour("ink"))
        at += 30 + 6.7 * len(text)


def _smoothed(values: Sequence[float], window: int = 10) -> list[float]:
    """Mean over the last values, at most a tenth of the series wide."""
    wide = max(1, min(window, len(values) // 10))
    return [statistics.fmean(values[max(0, end - wide) : end]) for end in range(1, len(values) + 1)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share does not exceed."""
    return ordered[math.ceil(round(share * len(ordered), 6)) - 1]


def _phases(seconds_by_rank: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Phases in the order a step goes through them, unknown ones last."""
    order = list(PHASE_COLOURS)
    found = {phase for spent in seconds_by_rank.values() for phase in spent}
    return sorted(found, key=lambda phase: (order.index(phase) if phase in order else len(order), phase))


def _loss_title(training: Points, held_out: Points, unigram: float | None) -> str:
    if not held_out:
        return f"Training loss went from {training[0][1]:.2f} to {training[-1][1]:.2f}"
    last = held_out[-1][1]
    if unigram is None:
        return f"Held-out loss ended at {last:.2f}"
    side = "under" if last < unigram else "over"
    return f"Held-out loss ended {abs(unigram - last):.2f} nats {side} a unigram model"


def _step_title(seconds_by_rank: Mapping[int, Mapping[str, float]]) -> str:
    total: dict[str, float] = {}
    for spent in seconds_by_rank.values():
        for phase, seconds in spent.items():
            total[phase] = total.get(phase, 0.0) + seconds
    largest = max(sorted(total), key=lambda phase: total[phase])
    whole = sum(total.values())
    step = 1000 * whole / len(seconds_by_rank)
    return f"{largest.capitalize()} takes {total[largest] / whole:.0%} of a step of {step:.0f} ms"


def _reward_title(reward: Points, kl: Points) -> str:
    if not reward:
        return "No reward was recorded"
    smooth = _smoothed([y for _, y in reward])
    went = "rose" if smooth[-1] > smooth[0] else "fell"
    bound = f", drift at most {max(y for _, y in kl):.2f} nats" if kl else ""
    return f"Reward {went} from {smooth[0]:.2f} to {smooth[-1]:.2f}{bound}"
