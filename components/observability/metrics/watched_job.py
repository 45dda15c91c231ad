"""A job seen from outside, by its folder alone: what its ranks last said, and what it came to so far.

Everything is read from files that ranks and supervisor write anyway, each line once. Of a long log only the
end is read, but for rank 0's, from which the ledger of the whole job follows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from components.observability import events
from components.reliability import goodput, heartbeat, journal
from components.reliability.goodput import Window
from components.reliability.heartbeat import Beat

RECENT, ALL = 1 << 18, 1 << 62
"""Bytes of a log's past: some hundred steps; everything."""
OF_RANK_0 = "rank-00000.jsonl"
LEDGER = ("at", "kind", "step", "seconds", "seconds_stalled")
Event = Mapping[str, Any]


@dataclass
class WatchedRank:
    """What one rank has said, of which the last step counts and seconds add up."""

    step: Event = field(default_factory=dict)
    """Its last step, or update of a policy."""
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By phase, evaluations and saves included."""
    waited: float = 0.0
    """Seconds in collectives."""

    def take(self, event: Event) -> None:
        """One more of its events."""
        if event["kind"] in events.STEPS:
            self.step = event
            self.steps += 1
        for phase, spent in (event.get("seconds") or {}).items():
            self.seconds[phase] += spent
        self.waited += sum((event.get("communication") or {}).values())


class WatchedJob:
    """One job folder; `look` reads what is new in it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.beats: list[Beat] = []
        self.ranks: dict[int, WatchedRank] = defaultdict(WatchedRank)
        self.last: dict[str, Event] = {}
        """The last event of rank 0 of each kind."""
        self.counts: dict[str, int] = defaultdict(int)
        """Events of rank 0 by kind."""
        self.faults: dict[str, int] = defaultdict(int)
        self.windows: list[Window] = []
        self.restarts = 0
        self.expected = 0
        """Ranks that the supervisor has launched last; 0 before any."""
        self._launched: float | None = None
        self._ledger: list[Event] = []
        self._account: dict[str, float] = {}
        self._closed = 0
        logs = folder / "events"
        self._tails = (events.Tail(logs, history=RECENT), events.Tail(logs, history=ALL, pattern=OF_RANK_0))
        self._journal = events.Tail(logs, history=ALL, pattern=journal.NAME)

    def look(self, since: float = 0.0) -> None:
        """Take in the last beats and everything that was written since the look before; of a job without a
        sign since that Unix time no more than the journal."""
        every, first = self._tails
        self.beats = heartbeat.read(self.folder / "beats")
        for event in self._journal.new():
            self._take_in(event)
        if self.last_sign < since:
            return
        for event in every.new():
            self.ranks[int(event["rank"])].take(event)
        for event in first.new():
            self.last[event["kind"]] = event
            self.counts[event["kind"]] += 1
            self._ledger.append({name: event[name] for name in LEDGER if name in event})

    def _take_in(self, event: Event) -> None:
        """What the supervisor did."""
        if event["kind"] == "fault":
            self.faults[str(event["fault"])] += 1
        elif event["kind"] == "launched":
            self.restarts += bool(self.windows) and self.windows[-1].fault is not None
            self._launched, self.expected = float(event["at"]), int(event["processes"])
        elif event["kind"] == "ended" and self._launched is not None:
            self.windows.append(Window(self._launched, float(event["at"]), event["fault"]))
            self._launched = None

    @property
    def runs(self) -> bool:
        """Whether it is not over; without a supervisor's journal, as long as there is no result."""
        if self.windows or self._launched is not None:
            return self._launched is not None
        return bool(self.beats) and not (self.folder / "result.json").exists()

    @property
    def failed(self) -> bool:
        """Whether its last attempt was ended by a fault, and no other one has begun."""
        return self._launched is None and bool(self.windows) and self.windows[-1].fault is not None

    @property
    def last_sign(self) -> float:
        """Unix time of the last beat, or of the supervisor's last word; 0 when there is none."""
        ended = self.windows[-1].ended if self.windows else 0.0
        return max([beat.at for beat in self.beats] + [self._launched or 0.0, ended])

    def goodput(self) -> dict[str, float]:
        """Seconds by cause until now; nothing for a job that no supervisor has launched.

        Time since the last step of an attempt that runs counts as detection: if it stalls, it will be that.
        """
        if self._launched is not None:
            now = Window(self._launched, time.time(), "runs")
            return goodput.account([*self.windows, now], self._ledger)
        if len(self.windows) != self._closed:
            self._closed, self._account = len(self.windows), goodput.account(self.windows, self._ledger)
        return self._account
