"""One number of a rank's gradient is no number any more, as after a fault in its device."""

from __future__ import annotations

from typing import Any

from components import plugins

POINT = "gradient"


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config, engine: Any) -> None:
    """Make the middle element of the largest piece that this rank's optimizer is about to be given NaN."""
    from components.training.gradients import given

    largest = max(given(engine), key=lambda piece: piece.numel())
    largest.view(-1)[largest.numel() // 2] = float("nan")
