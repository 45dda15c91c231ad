"""Loss spikes: several steps in a row far above the running median; told, or the attempt ends and is rewound.

Rewound means: the next attempt goes on from the newest checkpoint before the spike and does not train on the
batches that came with it, see `components.training.rewind`. PaLM met about 20 spikes, went back about 100
steps for each and left out 200 to 500 batches.

`tell` is the default: to go back is right when data and state of the weights made the spike together, and
wasted when the learning rate did. What it finds is in the case study `loss_spike`.

Pattern: Rewind-and-Skip
Problem: a few batches throw the loss up; it comes back late or never, and a restart meets the same batches.
Answer: end the attempt, go back to before the first high step, leave out the batches around it, go on.
Trade-off: the steps since that checkpoint are done again, and the batches left out are never learnt from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isfinite
from statistics import median
from typing import Literal, NamedTuple

from pydantic import Field

from components import plugins
from components.reliability.finding import Finding, Sight


class Config(plugins.Config):
    """How far above, for how long, and what then."""

    window: int = Field(default=64, ge=8)
    """Losses before, whose median and spread count."""
    sustained: int = Field(default=5, ge=1)
    """Steps in a row: a single hard batch is no spike."""
    deviations: float = Field(default=8.0, gt=0)
    """Robust standard deviations (1.4826 MAD) above the median."""
    least_share: float = Field(default=0.1, ge=0)
    """And above the median by this share of it."""
    action: Literal["tell", "rewind"] = "tell"
    """Whether the job goes on, or back."""
    before: int = Field(default=2, ge=0)
    """Batches before the first high one that are left out too, and steps that a checkpoint must be older."""
    after: int = Field(default=20, ge=0)
    """Batches behind the last one seen that are left out as well."""


class High(NamedTuple):
    """A step whose loss is far up."""

    step: int
    batch: int
    loss: float


class LossSpikes:
    """Losses that rank 0 wrote; those of a spike do not move the median until it is told."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.usual: deque[float] = deque(maxlen=config.window)
        self.high: list[High] = []

    def look(self, sight: Sight) -> Iterator[Finding]:
        """A spike that was sustained, once; then the level it reached becomes the usual one."""
        for event in sight.events:
            if event["kind"] == "step" and event["rank"] == 0:
                step = int(event["step"])
                yield from self._judged(High(step, int(event.get("batch", step - 1)), float(event["loss"])))

    def _judged(self, one: High) -> Iterator[Finding]:
        full = len(self.usual) == self.config.window
        if full and not (isfinite(one.loss) and one.loss <= self._bound()):
            self.high.append(one)
            if len(self.high) == self.config.sustained:
                yield self._told()
                self.usual.clear()
                self.high.clear()
            return
        self.high.clear()
        if isfinite(one.loss):
            self.usual.append(one.loss)

    def _bound(self) -> float:
        middle = median(self.usual)
        spread = 1.4826 * median(abs(loss - middle) for loss in self.usual)
        return middle + max(self.config.deviations * spread, self.config.least_share * abs(middle))

    def _told(self) -> Finding:
        first, last, usual = self.high[0], self.high[-1], median(self.usual)
        figures = {"from": first.step, "to": last.step, "usual": usual, "loss": str(last.loss)}
        back = {
            "resume_before": max(0, first.step - self.config.before),
            "leave_out": [max(0, first.batch - self.config.before), last.batch + self.config.after],
        }
        rewinds = self.config.action == "rewind"
        return Finding(
            kind="loss_spike",
            sentence=f"the loss is {last.loss:.3f} since step {first.step}, it was {usual:.3f}",
            step=first.step,
            ends=rewinds,
            advice="Look at the batches of these steps and at the gradient norm just before.",
            figures=figures | back if rewinds else figures,
        )


def make(config: Config, ranks: int) -> LossSpikes:
    """Anew for each attempt."""
    return LossSpikes(config)
