"""One bit of one number of a rank's gradient flips, the highest of its exponent: then it is huge."""

from __future__ import annotations

from typing import Any

from components import plugins

POINT = "gradient"


class Config(plugins.Config):
    """Nothing to choose: bits below make a number that is wrong and ordinary, which no norm shows."""


def strike(config: Config, engine: Any) -> None:
    """Flip it in the middle element of the largest piece that this rank's optimizer is about to be given."""
    from components.reliability.bits import flip, highest_exponent_bit
    from components.training.gradients import given

    largest = max(given(engine), key=lambda piece: piece.numel())
    flip(largest, largest.numel() // 2, highest_exponent_bit(largest))
