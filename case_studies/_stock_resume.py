"""Resuming the usual way: DeepSpeed's own `load_checkpoint`, nothing checked. A torchrun target."""

from __future__ import annotations

from pathlib import Path

from components.checkpoints import digests, manifest
from components.checkpoints.save import TAG
from components.jobs import this_rank
from components.training import engine as engines
from components.training.pretrain import Settings, Trainer


def main() -> None:
    """Load, train on, and say how much of rank 0's state is not what was saved."""
    rank = this_rank()
    settings = dict(rank.settings)
    folder = Path(settings.pop("stock_checkpoint"))
    steps = int(settings.pop("more_steps"))
    trainer = Trainer(rank, Settings.model_validate({**settings, "resume_from": None}))
    trainer.engine.load_checkpoint(str(folder), tag=TAG, load_lr_scheduler_states=False)
    saved = manifest.read(folder)
    found, wanted = digests.of_partition(trainer.engine), saved.partitions[rank.rank]
    trainer.step = saved.step
    for _ in range(steps):
        trainer.phases.begin(trainer.step + 1)
        trainer._update()
        trainer.step += 1
    rank.heartbeat.beat(trainer.step, "done")
    engines.leave()
    changed = [name for name, digest in wanted.items() if found.get(name) != digest]
    rank.finish({"changed": changed, "losses": trainer.losses[1:], "step": trainer.step})


if __name__ == "__main__":
    main()
