"""Where the tokens of one row of a training batch came from, down to the bytes of a shard.

What a row holds is arithmetic over the manifest, so the answer needs no log of what was read, and costs the
same for any step of a run of any length: two small files, then the pieces themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from components import storage
from components.data.lineage.pieces import Piece, pieces_of
from components.data.lineage.trained_order import TrainedOrder
from components.data.reader import Reader
from components.data.stream import TokenStream
from components.errors import ConfigError, DataError


@dataclass(frozen=True)
class Origins:
    """One row of one rank's batch, piece by piece."""

    step: int
    rank: int
    ranks: int
    row: int
    global_row: int
    """In the batch of all ranks."""
    epoch: int
    """Full passes over its source before."""
    trained: bool
    """Whether the newest checkpoint is past this step."""
    data_set: str
    manifest_sha256: str
    shard: str
    shard_sha256: str
    source: str
    """Part of a mixture, or the kind of the only source."""
    sequence: int
    """Of the shard."""
    pieces: list[Piece]
    validation: Validation | None
    """What was said of the data set before it was trained on; None where no record is."""


@dataclass(frozen=True)
class Validation:
    """The record of the stage that made the data set."""

    record: str
    run_id: str
    status: str
    ended_at: str
    git_commit: str | None
    same_data_set: bool
    """Whether the record's data set has this manifest."""
    verdicts: list[dict[str, Any]]


def explain(order: TrainedOrder, *, step: int, rank: int = 0, row: int = 0) -> Origins:
    """What a row of a rank's batch was made of; steps count from 1, as in the events of a run.

    Raises ConfigError for a step, rank or row that cannot be, DataError when the data set is another one.
    """
    position = order.position
    share = position.batch_size // order.ranks
    _refuse("step", step, 1, None)
    _refuse("rank", rank, 0, order.ranks)
    _refuse("row", row, 0, share)
    with Reader(order.shards) as reader:
        if reader.digest != position.manifest_sha256:
            raise DataError(
                f"{order.shards} has manifest {reader.digest[:12]}, the run was trained on "
                f"{position.manifest_sha256[:12]}; put that data set back to ask about it"
            )
        origin = _stream(reader, order).origin(step - 1, rank * share + row)
        return Origins(
            step=step,
            rank=rank,
            ranks=order.ranks,
            row=row,
            global_row=rank * share + row,
            epoch=origin.epoch,
            trained=step <= position.step,
            data_set=order.shards,
            manifest_sha256=reader.digest,
            shard=origin.shard.name,
            shard_sha256=origin.shard.sha256,
            source=origin.shard.source or reader.manifest.source.kind,
            sequence=origin.sequence,
            pieces=pieces_of(reader, origin),
            validation=_validation(order.run, reader.digest),
        )


def _refuse(name: str, value: int, first: int, end: int | None) -> None:
    if value < first or (end is not None and value >= end):
        allowed = f"{first} to {end - 1}" if end is not None else f"{first} or more"
        raise ConfigError(f"{name}={value} is not there: give {allowed}")


def _stream(reader: Reader, order: TrainedOrder) -> TokenStream:
    position = order.position
    return TokenStream(
        reader,
        position.split,
        sequence_length=position.sequence_length,
        batch_size=position.batch_size,
        seed=position.seed,
        packing=position.packing,
        mixture=position.mixture,
        left_out=position.left_out,
        block_items=position.block_items,
    )


def _validation(run: str, digest: str) -> Validation | None:
    """What the gates said of the data set when it was made."""
    url = storage.join(run, "records", "shard_dataset.json")
    if not run or not storage.exists(url):
        return None
    record = storage.read_json(url)
    return Validation(
        record=url,
        run_id=record["run_id"],
        status=record["status"],
        ended_at=record["ended_at"],
        git_commit=record["git_commit"],
        same_data_set=digest in [one["digest"] for one in record["outputs"]],
        verdicts=record["verdicts"],
    )
