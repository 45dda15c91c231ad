"""Where a job is in its data: a few hundred bytes in a checkpoint, from which any world size goes on."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from components.data.left_out import Ranges
from components.data.order import BLOCK_ITEMS, VERSION
from components.data.packing import Config as Packing
from components.errors import ConfigError
from components.plugins import Config


class Position(Config):
    """Everything that the order rests on, and how far it was read. Ranks and workers are not part of it."""

    manifest_sha256: str
    split: str
    seed: int
    samples_consumed: int = Field(ge=0)
    """Sequences handed out over all ranks and epochs: counted, never inferred from a batch's shape."""
    batch_size: int = Field(ge=1)
    """Sequences in a global batch."""
    sequence_length: int
    packing: Packing
    mixture: dict[str, float]
    left_out: Ranges = ()
    """Batches that were passed over, or will be: those of a loss spike. No part of what must be the same."""
    block_items: int = BLOCK_ITEMS
    """Sequences that are mixed with each other."""
    order_version: int = VERSION

    @property
    def step(self) -> int:
        """Batches that were handed out, which is the step to go on with; see `left_out.batch_of`."""
        return self.samples_consumed // self.batch_size

    def refuse_another(self, other: Position) -> None:
        """Going on in another order would repeat and lose samples in silence: each difference is an error."""
        mine, yours = self._order(), other._order()
        differ = [
            f"{name} was {mine[name]!r} and is {yours[name]!r}" for name in mine if mine[name] != yours[name]
        ]
        if differ:
            raise ConfigError(
                f"the checkpoint was trained on another order of samples: {'; '.join(differ)}; "
                "go on with what it was started with, or start a new run"
            )

    def _order(self) -> dict[str, Any]:
        return self.model_dump(exclude={"samples_consumed", "left_out"})
