"""All waits of a job in one order, and a refusal where one that should give up later gives up first.

A job waits in layers: the supervisor for a beat, a rank for another rank in a collective, a node for other
nodes at the rendezvous, the scheduler for the whole job. Each layer knows less than the one inside it: a
watchdog names rank, phase and line, a collective's time-out at best its own rank, a scheduler nothing. So
the inner one must always speak first.

    order(limits, collective_seconds=900, launcher=...) -> [Wait("heartbeat", 0.1, ...), ...]

Pattern: Timeout Budget
Problem: time-outs are set in five places by five people; the one that goes off first knows least, destroys
the evidence of the others, or restarts a job that was only saving.
Answer: one list, innermost first, checked before anything starts; each wait must be longer than those inside.
Trade-off: where nothing watches, a dead peer is waited for as long as the outermost wait allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from components.errors import ConfigError
from components.plugins import Config
from components.reliability.watchdog import Limits


class Wait(NamedTuple):
    """How long somebody waits before giving up."""

    name: str
    """`heartbeat`, `progress`, `collective`, `rendezvous`, `scheduler`"""
    seconds: float
    setting: str
    """What to change, as `--set` takes it."""


def order(limits: Limits, *, collective_seconds: float, launcher: Config) -> list[Wait]:
    """The waits of a job, innermost first; those that a launcher does not have are left out."""
    return [
        Wait("heartbeat", limits.poll_seconds, "profile.reliability.limits.poll_seconds"),
        max(_progress(limits), key=lambda wait: wait.seconds),
        Wait("collective", collective_seconds, "training.timeout_seconds"),
        *_of_launcher(launcher),
    ]


def check(limits: Limits, *, collective_seconds: float, launcher: Config) -> None:
    """ConfigError that names the first two waits that stand in the wrong order."""
    steps = [wait for wait in _progress(limits) if wait.seconds <= limits.poll_seconds]
    waits = order(limits, collective_seconds=collective_seconds, launcher=launcher)
    wrong = [(waits[0], step) for step in steps] + [
        (inner, outer) for inner, outer in pairwise(waits) if inner.seconds >= outer.seconds
    ]
    for inner, outer in wrong[:1]:
        raise ConfigError(
            f"{outer.setting}={outer.seconds:g} s is no longer than {inner.setting}={inner.seconds:g} s: the "
            f"{outer.name} would give up before the {inner.name} can say what is wrong; raise the first or "
            f"lower the second ({' < '.join(wait.name for wait in waits)})"
        )


def told(waits: list[Wait]) -> str:
    """For a plan: `heartbeat 0.1 s < progress 600 s < collective 900 s`."""
    return " < ".join(f"{wait.name} {wait.seconds:g} s" for wait in waits)


def _progress(limits: Limits) -> Iterator[Wait]:
    """How long a rank may stand in each kind of place while others wait for it in a collective."""
    for name in ("floor", "first_steps", "rollout", "evaluate", "checkpoint"):
        setting = f"profile.reliability.limits.{name}_seconds"
        yield Wait("progress", float(getattr(limits, f"{name}_seconds")), setting)


def _of_launcher(launcher: Config) -> Iterator[Wait]:
    rendezvous = getattr(launcher, "rendezvous_seconds", None)
    if rendezvous is not None:
        yield Wait("rendezvous", float(rendezvous), "profile.launcher.rendezvous_seconds")
    limit = getattr(launcher, "time_limit", None)
    if limit is not None:
        yield Wait("scheduler", _seconds(limit), "profile.launcher.time_limit")


def _seconds(limit: str) -> float:
    """Of Slurm's `[days-]hours:minutes:seconds`."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", limit)
    assert found is not None, "validated by the launcher's settings"
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
