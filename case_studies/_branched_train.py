"""Training with a branch that depends on a rank's own data around a collective. A torchrun target.

The figure is one that dashboards ask for: how often a token came up, over all ranks. A rank whose batch has
none of it saves itself the call, and nothing is wrong until the first step in which that happens.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from components.jobs import this_rank
from components.plugins import Config
from components.training import engine as engines
from components.training.pretrain import Settings, Trainer


class Branch(Config):
    """What is counted, and by whom."""

    token: int
    always: bool = False
    """Ranks without the token take part as well, with nothing to add: the mended branch."""


class BranchedTrainer(Trainer):
    """One rank, which counts before it trains."""

    branch: Branch
    counted = 0

    def _update(self) -> None:
        with self.phases("data"):
            self._count()
        super()._update()

    def _count(self) -> None:
        """Add this step's count of all ranks."""
        ranks = self.rank.world_size
        batch = self.feed.stream.batch(self.step, rank=self.rank.rank, world_size=ranks)
        count = torch.tensor([int((batch.inputs == self.branch.token).sum())])
        if count or self.branch.always:
            dist.all_reduce(count)
        self.counted += int(count)


def main() -> None:
    """Train to the end."""
    rank = this_rank()
    branch = Branch.model_validate(rank.settings.pop("branch"))
    trainer = BranchedTrainer(rank, Settings.model_validate(rank.settings))
    trainer.branch = branch
    result = trainer.run()
    engines.leave()
    rank.finish({**result, "counted": trainer.counted})


if __name__ == "__main__":
    main()
