"""Training in which one number of one rank's memory becomes NaN. A torchrun target, for both sides.

The number is in the embedding of a token that comes up late: until then neither loss nor gradient meets it.
"""

from __future__ import annotations

from typing import Any

from case_studies._stock_train import StockTrainer, stock_trainer
from components.jobs import Rank, this_rank
from components.plugins import Config
from components.training import engine as engines
from components.training.pretrain import Settings, Trainer


class Poison(Config):
    """Where and when."""

    token: int
    """Row of the input embedding."""
    step: int
    """The step before which it happens, in the first attempt only."""


class _Poisoned(Trainer):
    """One rank; the one that holds the number is struck."""

    poison: Poison

    def _update(self) -> None:
        if self.first_step == 0 and self.step + 1 == self.poison.step:
            embedding = self.engine.module.get_input_embeddings().weight
            if strike(embedding, self.poison.token):
                self.rank.events.write("struck", step=self.step + 1)
        super()._update()


class PoisonedTrainer(_Poisoned):
    """Beside this platform's own saver."""


class PoisonedStockTrainer(_Poisoned, StockTrainer):
    """Beside DeepSpeed's."""


def strike(weight: Any, row: int) -> bool:
    """Make the row's first number NaN in the fp32 master, on the one rank that holds it."""
    held = weight._hp_mapping  # DeepSpeed's own link from a weight to this rank's slice of its master
    if held is None:
        return False
    slice_ = held.lp_fragment_address
    offset = row * weight.shape[1] - slice_.start
    if not 0 <= offset < slice_.numel:
        return False
    held.hp_fragment.data[offset] = float("nan")
    return True


def _trainer(rank: Rank) -> PoisonedTrainer | PoisonedStockTrainer:
    if "stock" in rank.settings:
        return stock_trainer(PoisonedStockTrainer, rank)
    return PoisonedTrainer(rank, Settings.model_validate(rank.settings))


def main() -> None:
    """Train to the end, the way that the settings say."""
    rank = this_rank()
    poison = Poison.model_validate(rank.settings.pop("poison"))
    trainer = _trainer(rank)
    trainer.poison = poison
    result = trainer.run()
    engines.leave()
    rank.finish(result)


if __name__ == "__main__":
    main()
