"""Training that saves the usual way: DeepSpeed's own `save_checkpoint`, the newest few are kept, and a
restart loads what `latest` names. A torchrun target.

Nothing else differs from `components.training.pretrain`, so losses can be compared bit by bit.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any, TypeVar

from case_studies._small import WRITES, kept
from components.checkpoints import digests, manifest
from components.checkpoints.save import TAG
from components.jobs import Rank, this_rank
from components.plugins import Config
from components.reliability.faults import inject
from components.training import engine as engines
from components.training.pretrain import Settings, Trainer


class Stock(Config):
    """What is usual about it."""

    folder: str
    """Where checkpoints and `latest` go."""
    keep: int = 3
    """The newest so many; older ones are deleted after each save."""
    sealed: str = ""
    """A checkpoint of this platform to start from, of which nothing is checked."""
    stop_at_nan: bool = True
    """With the guard that careful scripts have."""


class StockTrainer(Trainer):
    """One rank of such a job."""

    def __init__(self, rank: Rank, settings: Settings, stock: Stock) -> None:
        super().__init__(rank, settings)
        self.stock = stock
        self.changed: list[str] = []
        if stock.sealed:
            self._load_sealed(Path(stock.sealed))
        elif (Path(stock.folder) / "latest").exists():
            self.engine.load_checkpoint(stock.folder, load_lr_scheduler_states=False)
            self._go_on_from(self.engine.global_steps)
        self._hold_up_writes()

    def _load_sealed(self, folder: Path) -> None:
        """Only afterwards, and only for the study: which tensors of this rank are not what was saved."""
        self.engine.load_checkpoint(str(folder), tag=TAG, load_lr_scheduler_states=False)
        saved = manifest.read(folder)
        found, wanted = digests.of_partition(self.engine), saved.partitions[self.rank.rank]
        self.changed = [name for name, digest in wanted.items() if found.get(name) != digest]
        self._go_on_from(saved.step)

    def _go_on_from(self, step: int) -> None:
        size = self.settings.training.batch_size
        reads = self.feed.position.model_copy(update={"samples_consumed": step * size})
        self.feed.start(reads, step * self.feed.slots)
        self.step = self.first_step = step

    def _hold_up_writes(self) -> None:
        """Let a drill be a slow disk of one rank."""
        writer = self.engine.checkpoint_engine
        write = writer.save

        def save(state_dict: Any, path: str) -> None:
            inject(self.rank.rank, self.step, WRITES)
            write(state_dict, path)

        writer.save = save

    def _update(self) -> None:
        """One step, and what a careful script asks after it."""
        super()._update()
        if self.stock.stop_at_nan and math.isnan(self.losses[-1]):
            raise FloatingPointError(f"the loss of step {self.step + 1} is NaN")

    def _save(self) -> None:
        with self.phases("checkpoint"):
            self.engine.save_checkpoint(self.stock.folder, tag=f"step-{self.step:06d}")
            if self.rank.rank == 0:
                for old in kept(Path(self.stock.folder))[: -self.stock.keep]:
                    shutil.rmtree(old)

    def _result(self, seconds: float) -> dict[str, Any]:
        return super()._result(seconds) | {"changed": self.changed}


Kind = TypeVar("Kind", bound=StockTrainer)


def stock_trainer(kind: type[Kind], rank: Rank) -> Kind:
    """Such a trainer, as the job's settings ask for it."""
    settings = dict(rank.settings)
    stock = Stock.model_validate(settings.pop("stock"))
    return kind(rank, Settings.model_validate({**settings, "resume_from": None}), stock)


def main() -> None:
    """Train to the end."""
    rank = this_rank()
    trainer = stock_trainer(StockTrainer, rank)
    result = trainer.run()
    engines.leave()
    rank.finish(result)


if __name__ == "__main__":
    main()
