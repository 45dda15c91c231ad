"""Where the wall time of a job went: useful steps, and each cause of loss; together they are all of it.

    account([Window(launched, ended, None), ...], events of rank 0) -> {"useful": 812.0, "start": 14.2, ...}

A step counts as useful when no later attempt had to do it again. Times inside a step are those of its phases
on rank 0; what no phase owns is `other`, and is told rather than spread.

Pattern: Goodput Ledger
Problem: devices that are busy are not devices that make progress; utilisation hides restarts and rework.
Answer: every second of a job belongs to useful steps or to one named cause, and the parts sum to the whole.
Trade-off: one rank's clock stands for all; what overlaps on a GPU is counted where it was waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.observability.events import STEPS

CAUSES = (
    "useful",
    "start",
    "repeated",
    "data",
    "evaluate",
    "checkpoint",
    "detection",
    "restart",
    "ending",
    "other",
)
"""`start`: launch to the first step. `repeated`: steps that were lost and done again. `detection`: from the
last step of an attempt that failed to its end. `restart`: between attempts. `ending`: after the last step."""
WORK = ("rollout", "forward", "backward", "optimizer")
SAVING = ("snapshot", "flush", "checkpoint")
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Window:
    """One attempt, in Unix time."""

    launched: float
    ended: float
    fault: str | None = None
    """Kind of the finding that ended it; None when it ended well."""


def account(windows: Sequence[Window], events: Sequence[Event]) -> dict[str, float]:
    """Seconds by cause, of all attempts and what lies between; they sum to the time from first to last."""
    spent = dict.fromkeys(CAUSES, 0.0)
    last = {int(event["step"]): float(event["at"]) for event in events if event["kind"] in STEPS}
    for before, after in zip([None, *windows], windows, strict=False):
        if before is not None:
            spent["restart"] += after.launched - before.ended
        own = [event for event in events if after.launched <= float(event["at"]) <= after.ended]
        for cause, seconds in _of_attempt(after, own, last):
            spent[cause] += seconds
    return {cause: round(seconds, 6) for cause, seconds in spent.items()}


def told(spent: Mapping[str, float]) -> str:
    """For a log line: `62% of 41 s were useful steps; start 12.1 s, other 2.0 s`. Not every job trains."""
    if not spent["useful"] and not spent["repeated"]:
        return f"{sum(spent.values()):.0f} s without a training step"
    lost = sorted(((cause, spent[cause]) for cause in spent if cause != "useful"), key=lambda one: -one[1])
    most = ", ".join(f"{cause} {seconds:.1f} s" for cause, seconds in lost[:4] if seconds >= 0.05)
    whole = f"{100 * share_useful(spent):.0f}% of {sum(spent.values()):.0f} s were useful steps"
    return f"{whole}; {most}" if most else whole


def share_useful(spent: Mapping[str, float]) -> float:
    """Of the wall time; 0 when there was none."""
    total = sum(spent.values())
    return spent["useful"] / total if total else 0.0


def _of_attempt(
    window: Window, events: Sequence[Event], last: Mapping[int, float]
) -> Iterator[tuple[str, float]]:
    """Its whole time in pieces: each ends at an event, and none is counted twice."""
    at, begun = window.launched, False
    for event in sorted(events, key=lambda event: float(event["at"])):
        until = float(event["at"])
        if event["kind"] in STEPS:
            seconds: Mapping[str, float] = event.get("seconds", {})
            if not begun:
                inside = min(sum(seconds.values()), until - at)
                yield "start", until - at - inside
                at, begun = until - inside, True
            useful = last[int(event["step"])] == until
            yield from _of_step(seconds, until - at, useful)
        elif event["kind"] == "evaluate" and begun:
            yield "evaluate", until - at
        elif event["kind"] == "save" and begun:
            stalled = min(sum(event.get("seconds", {}).values()), until - at)
            yield "checkpoint", stalled
            yield "other", until - at - stalled
        elif event["kind"] == "checkpoint" and begun:
            stalled = min(float(event.get("seconds_stalled", 0.0)), until - at)
            yield "checkpoint", stalled
            yield "other", until - at - stalled
        else:
            continue
        at = until
    rest = "start" if not begun else "ending" if window.fault is None else "detection"
    yield rest, window.ended - at


def _of_step(seconds: Mapping[str, float], whole: float, useful: bool) -> Iterator[tuple[str, float]]:
    """The time since the event before, by what the phases say of it."""
    left = whole
    for cause, phases in (("work", WORK), ("data", ("data",)), ("checkpoint", SAVING)):
        part = min(sum(seconds.get(phase, 0.0) for phase in phases), left)
        left -= part
        yield cause if cause != "work" else "useful" if useful else "repeated", part
    yield "other", left
