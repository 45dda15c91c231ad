"""The usual training of `replica_desync`: nobody compares copies, until a look at the very end. A torchrun
target."""

from __future__ import annotations

from typing import Any

from case_studies._stock_train import StockTrainer, stock_trainer
from components.jobs import this_rank
from components.training import engine as engines
from components.training import replicas


class DesyncedTrainer(StockTrainer):
    """One rank."""

    def _compare(self) -> None:
        """Not the usual way."""

    def _result(self, seconds: float) -> dict[str, Any]:
        divergence = replicas.compare(self.engine)
        return super()._result(seconds) | {"divergence": divergence and divergence.told}


def main() -> None:
    """Train to the end."""
    rank = this_rank()
    result = stock_trainer(DesyncedTrainer, rank).run()
    engines.leave()
    rank.finish(result)


if __name__ == "__main__":
    main()
