"""How many ranks a job should have now: as many as there is room for, of those that its batch divides over.

Pattern: Elastic Capacity
Problem: a job of a fixed size waits idle when one machine of many is taken, and lets one that is added idle.
Answer: capacity is a number that someone says; each attempt starts with the most ranks that fit it, and while
one runs, a number that has changed for some seconds asks it to save and end, as a preemption does.
Trade-off: each change costs a restart and a reshape of the optimizer's state; sums in another order round
differently, so the loss agrees closely and no longer to the last bit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from pydantic import Field, model_validator

from components import plugins
from components.errors import ConfigError
from components.jobs import Job
from components.reliability import metadata, preemption
from components.reliability.metadata import Watched

WAIT_SECONDS = 0.5
SPEAK_SECONDS = 60.0
logger = logging.getLogger(__name__)


class Config(plugins.Config):
    """Between which numbers of ranks a job may move, and who says how many there is room for."""

    least: int = Field(default=1, ge=1)
    """With room for fewer it waits."""

    most: int = Field(default=1024, ge=1)
    """It never takes more."""

    capacity: str
    """A file or an address that holds one number: the ranks there is room for now."""

    poll_seconds: float = Field(default=2.0, gt=0)
    """Between two questions."""

    settle_seconds: float = Field(default=10.0, ge=0)
    """How long a new number must stand before a running job is asked to follow it."""

    @model_validator(mode="after")
    def _least_is_no_more_than_most(self) -> Config:
        if self.least > self.most:
            raise ValueError(f"least={self.least} is more than most={self.most}; change one of them")
        return self


def most_that_fit(capacity: int, config: Config, allowed: Sequence[int]) -> int | None:
    """The largest number of ranks that is allowed and has room; None when there is none to start with."""
    room = min(capacity, config.most)
    return max((count for count in allowed if config.least <= count <= room), default=None)


def number_in(text: str | None, place: str) -> int:
    """The capacity that was read; none there is 0."""
    try:
        return int((text or "0").strip())
    except ValueError:
        raise ConfigError(
            f"{place} holds {text!r:.60}; profile.reliability.elastic.capacity must name a file or an "
            "address that holds one whole number"
        ) from None


class Supply:
    """What the supervisor asks before a job starts and while it runs: with how many ranks; is it to part?"""

    def __init__(
        self, notices: preemption.Config, elastic: Config | None = None, allowed: Sequence[int] = ()
    ) -> None:
        self.elastic, self.allowed = elastic, allowed
        self._notice = Watched(lambda: preemption.told(notices), notices.poll_seconds)
        every = elastic.poll_seconds if elastic else notices.poll_seconds
        self._capacity = Watched(self._ask, every)
        self._other: tuple[int | None, float] | None = None

    def wait(self) -> int | None:
        """Return when a job may start: how many ranks it may have, None for as many as its profile says."""
        self._other = None
        spoke = float("-inf")
        while (why := self._must_wait()) is not None:
            if time.monotonic() - spoke >= SPEAK_SECONDS:
                logger.warning("waits: %s", why)
                spoke = time.monotonic()
            time.sleep(WAIT_SECONDS)
        return self._ranks(self._capacity.last())

    def wish(self, job: Job) -> str | None:
        """Why a running job should save, end, and go on with another number of ranks."""
        capacity = self._capacity.last() if self.elastic else None
        if self.elastic is None or capacity is None:
            return None
        wanted, now = self._ranks(capacity), time.monotonic()
        if wanted == job.processes:
            self._other = None
        elif self._other is None or self._other[0] != wanted:
            self._other = wanted, now
        elif now - self._other[1] >= self.elastic.settle_seconds:
            return f"there is room for {wanted or 'no'} ranks, and the job has {job.processes}"
        return None

    def _must_wait(self) -> str | None:
        if (said := self._notice.now()) is not None:
            return f"the machine is to be taken: {said}"
        if self.elastic is not None and self._ranks(self._capacity.now()) is None:
            least = min((count for count in self.allowed if count >= self.elastic.least), default=None)
            return f"{self.elastic.capacity} has no room for {least} ranks, the fewest that this job takes"
        return None

    def _ask(self) -> int | None:
        return (
            number_in(metadata.read(self.elastic.capacity), self.elastic.capacity) if self.elastic else None
        )

    def _ranks(self, capacity: int | None) -> int | None:
        return most_that_fit(capacity or 0, self.elastic, self.allowed) if self.elastic else None
