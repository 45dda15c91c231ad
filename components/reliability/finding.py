"""What a look at a running job finds, and the attempt that follows from it: words of the whole folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from components.reliability.heartbeat import Beat

Confidence = Literal["certain", "likely", "unclear"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a job. The sentence is for a log line, a record and whoever is woken."""

    kind: str
    """`crash`, `stall`, `corruption`, or what a detector calls it: `straggler`, `loss_spike`."""
    sentence: str
    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    ends: bool = True
    """Whether this attempt is of no more use: it is ended and the job started again. Otherwise it is told."""
    confidence: Confidence = "certain"
    """How sure the rank is."""
    seconds: float | None = None
    """From when it began, as far as anyone saw, until now."""
    advice: str = ""
    """What to look at next."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What it was decided on: JSON."""


@dataclass(frozen=True)
class Sight:
    """One look at a job from outside: where its ranks are, what they have written since the look before."""

    beats: Sequence[Beat]
    events: Sequence[Mapping[str, Any]]
    """Of all ranks, by time."""
    now: float
    """Seconds of a monotonic clock."""


class Detector(Protocol):
    """Remembers what it has seen of one attempt; pure, so that an hour and a thousand ranks fit in a test."""

    def look(self, sight: Sight) -> Iterable[Finding]:
        """What is wrong now. What was told once is not told again."""


@dataclass(frozen=True)
class Attempt:
    """What the job that comes next is made from."""

    number: int = 0
    findings: tuple[Finding, ...] = ()
    """Why each attempt before was ended."""
    processes: int | None = None
    """Ranks that there is room for; None: as many as the profile says."""


FIRST = Attempt()
