"""One rank's supply of batches, and the account of it: where it is, what was padded, dropped, repeated.

With plain concatenation every rank has equally many targets in every step, and nobody has to ask. Where
documents are masked, padded or may be dropped, the ranks add up their counts once a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from components.data.left_out import Ranges, batch_of, joined
from components.data.loader import Loader
from components.data.mending.quarantine import Quarantine, table
from components.data.position import Position
from components.data.reader import Reader
from components.data.stream import Batch, TokenStream
from components.jobs import Rank
from components.training import engine as engines
from components.training.config import Training

ALL = "all"
"""What a data set without a mixture is called in figures."""


class Fed(NamedTuple):
    """This rank's batch of a step, and what the batches of all ranks hold together."""

    batch: Batch
    targets: int
    """That count in the loss."""
    tokens: int
    """Inputs that are no padding."""
    number: int
    """Of the batch in the order, counted from 0."""


class Feed:
    """The train split of a data set, read by URL; `start` it at a step, then `next()`."""

    def __init__(
        self,
        rank: Rank,
        shards: str,
        training: Training,
        *,
        sequence_length: int,
        seed: int,
        left_out: Ranges = (),
    ) -> None:
        self.rank, self.training = rank, training
        self.tokens_seen = 0
        skips = training.damaged_samples.on_fault == "skip"
        self.uneven = skips or training.packing.mask_documents or training.packing.kind != "concatenate"
        """Whether ranks may have unequally many targets."""
        self.reader = Reader(shards)
        quarantine = self._quarantine() if skips else None
        self.reader.on_fault = quarantine.mended if quarantine else None
        self.stream = TokenStream(
            self.reader,
            "train",
            sequence_length=sequence_length,
            batch_size=training.batch_size,
            seed=seed,
            packing=training.packing,
            mixture=training.mixture,
            drop=quarantine.drop if quarantine else None,
            left_out=joined((), left_out),
        )
        self.slots = training.batch_size * sequence_length
        """Inputs of a global batch, padding included."""
        self.loader = self._loader(0)

    def start(self, position: Position, tokens_seen: int) -> None:
        """Go on where a checkpoint was, with what it leaves out; what this job adds to that lies ahead."""
        ahead = batch_of(position.step, position.left_out)
        self.stream.left_out = joined(position.left_out, self.stream.left_out, since=ahead)
        self.loader, self.tokens_seen = self._loader(position.step), tokens_seen

    @property
    def position(self) -> Position:
        """Of the batch that comes next."""
        return self.loader.position

    def next(self) -> Fed:
        """The batch of the next step; all ranks call it together."""
        number = self.stream.number(self.position.step)
        batch = next(self.loader)
        targets, tokens = self.slots, self.slots
        if self.uneven:
            targets, tokens = map(int, engines.sums_over_ranks(batch.num_targets, batch.num_tokens))
        self.tokens_seen += tokens
        return Fed(batch, targets, tokens, number)

    def figures(self) -> dict[str, Any]:
        """What the job was fed, from its very beginning, over all ranks."""
        step = self.position.step
        found = table(self.rank.folder / "quarantine")
        return {
            "position": self.position.model_dump(mode="json"),
            "tokens_seen": self.tokens_seen,
            "padded_share": 1 - self.tokens_seen / max(step * self.slots, 1),
            "epochs": {name or ALL: done for name, done in self.stream.epochs(step).items()},
            "rows_per_batch": {name or ALL: rows for name, rows in self.stream.rows_per_batch.items()},
            "left_out_batches": self.stream.number(step) - step,
            "dropped_samples": sum(row["kind"] == "sample" for row in found),
        }

    def close(self) -> None:
        """End loader workers and close every shard."""
        self.loader.close()
        self.reader.close()

    def _loader(self, step: int) -> Loader:
        return Loader(
            self.stream,
            first_step=step,
            rank=self.rank.rank,
            world_size=self.rank.world_size,
            workers=self.training.loader_workers,
        )

    def _quarantine(self) -> Quarantine:
        return Quarantine(
            self.rank.folder / "quarantine",
            policy=self.training.damaged_samples,
            documents=self.reader.manifest.splits["train"].documents,
            who=f"rank-{self.rank.rank:05d}",
            tell=self._tell,
        )

    def _tell(self, row: dict[str, Any]) -> None:
        """A sample that is left out, or an index that was made again."""
        kind = "drop" if row["kind"] == "sample" else "mend"
        self.rank.events.write(kind, step=self.position.step + 1, found=row)
