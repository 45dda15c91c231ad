"""The real pre-training target, which also writes down what rows of tokens each rank was fed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xxhash

from components.data.stream import Batch
from components.jobs import Rank, this_rank
from components.training import engine as engines
from components.training.feed import Fed, Feed
from components.training.pretrain import Settings, Trainer


class WitnessedTrainer(Trainer):
    """One rank; what it is fed passes by a witness."""

    def _update(self) -> None:
        feed, step, rank = self.feed, self.step + 1, self.rank

        def fed() -> Fed:
            found = Feed.next(feed)
            with place(rank.folder, rank.rank).open("a") as file:
                file.write(json.dumps([step, rows(found.batch)]) + "\n")
            return found

        feed.next = fed  # type: ignore[method-assign]
        super()._update()


def rows(batch: Batch) -> list[str]:
    """A digest of each row: inputs and targets."""
    both = np.concatenate([batch.inputs, batch.targets], axis=1)
    return [xxhash.xxh3_128_hexdigest(np.ascontiguousarray(row).tobytes()) for row in both]


def place(folder: Path, rank: int) -> Path:
    """Where a rank's rows are written down."""
    return folder / f"rows-{rank:05d}.jsonl"


def main() -> None:
    """Train, as `settings.json` of the job's folder says."""
    rank: Rank = this_rank()
    trainer = WitnessedTrainer(rank, Settings.model_validate(rank.settings))
    result = trainer.run()
    engines.leave()
    trainer.leave(result)


if __name__ == "__main__":
    main()
