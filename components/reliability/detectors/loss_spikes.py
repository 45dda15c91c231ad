"""Loss spikes: several steps in a row far above the running median; told, the job goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import isfinite
from statistics import median

from pydantic import Field

from components import plugins
from components.reliability.finding import Finding, Sight


class Config(plugins.Config):
    """How far above, for how long."""

    window: int = Field(default=64, ge=8)
    """Losses before, whose median and spread count."""
    sustained: int = Field(default=5, ge=1)
    """Steps in a row: a single hard batch is no spike."""
    deviations: float = Field(default=8.0, gt=0)
    """Robust standard deviations (1.4826 MAD) above the median."""
    least_share: float = Field(default=0.1, ge=0)
    """And above the median by this share of it."""


class LossSpikes:
    """Losses that rank 0 wrote; those of a spike do not move the median until it is told."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.usual: deque[float] = deque(maxlen=config.window)
        self.high: list[tuple[int, float]] = []

    def look(self, sight: Sight) -> Iterator[Finding]:
        """A spike that was sustained, once; then the level it reached becomes the usual one."""
        for event in sight.events:
            if event["kind"] == "step" and event["rank"] == 0:
                yield from self._judged(int(event["step"]), float(event["loss"]))

    def _judged(self, step: int, loss: float) -> Iterator[Finding]:
        if len(self.usual) == self.config.window and not (isfinite(loss) and loss <= self._bound()):
            self.high.append((step, loss))
            if len(self.high) == self.config.sustained:
                yield self._told()
                self.usual.clear()
                self.high.clear()
            return
        self.high.clear()
        if isfinite(loss):
            self.usual.append(loss)

    def _bound(self) -> float:
        middle = median(self.usual)
        spread = 1.4826 * median(abs(loss - middle) for loss in self.usual)
        return middle + max(self.config.deviations * spread, self.config.least_share * abs(middle))

    def _told(self) -> Finding:
        (first, _), (last, loss) = self.high[0], self.high[-1]
        usual = median(self.usual)
        return Finding(
            kind="loss_spike",
            sentence=f"the loss is {loss:.3f} since step {first}, it was {usual:.3f}",
            step=first,
            ends=False,
            advice="Look at the batches of these steps and at the gradient norm just before.",
            figures={"from": first, "to": last, "usual": usual, "loss": str(loss)},
        )


def make(config: Config, ranks: int) -> LossSpikes:
    """Anew for each attempt."""
    return LossSpikes(config)
