"""Batches come in order whoever reads them, and the position says what was handed out."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.data.loader import Loader
from components.data.manifest import Shard
from components.data.position import Position
from components.data.reader import Reader
from components.data.stream import PADDING, Batch, TokenStream
from components.errors import ConfigError, ShardIntegrityError

LENGTH, BATCH = 64, 4


def stream_of(shards: Path, **settings: Any) -> TokenStream:
    chosen = {"sequence_length": LENGTH, "batch_size": BATCH, "seed": 7, **settings}
    return TokenStream(Reader(str(shards)), "train", **chosen)


def same(one: Batch, other: Batch) -> bool:
    arrays = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(mine, yours) for mine, yours in arrays)


@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (1, "fork"), (2, "fork"), (2, "spawn")])
def test_any_number_of_workers_hands_out_the_same_batches_in_order(
    small_shards: Path, workers: int, start_method: str | None
) -> None:
    stream = stream_of(small_shards)
    with Loader(stream, first_step=5, workers=workers, start_method=start_method) as loader:
        got = list(islice(loader, 9))
    assert all(same(batch, stream.batch(step)) for step, batch in enumerate(got, start=5))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_position_counts_what_was_handed_out_and_not_what_was_read_ahead(
    small_shards: Path, workers: int
) -> None:
    with Loader(stream_of(small_shards), workers=workers, prefetch=4) as loader:
        assert loader.position.samples_consumed == 0
        list(islice(loader, 3))
        if workers:
            time.sleep(0.5)  # for what is read ahead to be ready
        assert (loader.position.step, loader.position.samples_consumed) == (3, 3 * BATCH)


def test_a_position_is_small(small_shards: Path) -> None:
    many = {f"source_{number}": 1.0 for number in range(20)}
    position = Loader(stream_of(small_shards)).position.model_copy(update={"mixture": many})
    assert len(position.model_dump_json()) < 1024


def test_closing_ends_the_workers_at_once(small_shards: Path) -> None:
    before = set(multiprocessing.active_children())
    loader = Loader(stream_of(small_shards), workers=2)
    next(loader)
    ours = set(multiprocessing.active_children()) - before
    assert len(ours) == 2
    started = time.perf_counter()
    loader.close()
    assert time.perf_counter() - started < 2.0
    assert not any(worker.is_alive() for worker in ours)


def test_without_workers_there_is_no_torch(small_shards: Path) -> None:
    code = (
        "import sys\n"
        "from components.data.loader import Loader\n"
        "from components.data.reader import Reader\n"
        "from components.data.stream import TokenStream\n"
        f"reader = Reader({str(small_shards)!r})\n"
        "stream = TokenStream(reader, 'train', sequence_length=64, batch_size=4, seed=0)\n"
        "next(Loader(stream))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def test_a_killed_job_goes_on_at_another_world_size_and_sees_every_row_once(small_shards: Path) -> None:
    """Each phase is ended in the middle of reading ahead; only the position is carried over, as JSON."""
    whole = stream_of(small_shards)
    wanted = [whole.batch(step) for step in range(12)]
    rows, kept = [], whole.position(0).model_dump_json()
    for ranks, steps, workers in ((1, 3, 1), (2, 4, 1), (4, 3, 0), (2, 2, 0)):
        position = Position.model_validate_json(kept)
        streams = [stream_of(small_shards) for _ in range(ranks)]
        position.refuse_another(streams[0].position(0))
        loaders = [
            Loader(one, first_step=position.step, rank=rank, world_size=ranks, workers=workers)
            for rank, one in enumerate(streams)
        ]
        for _ in range(steps):
            rows += [batch.inputs for batch in map(next, loaders)]
        kept = loaders[0].position.model_dump_json()
        for loader in loaders:
            loader.close()
    assert np.array_equal(np.concatenate(rows), np.concatenate([batch.inputs for batch in wanted]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"seed": 8}, "seed was 7 and is 8"),
        ({"batch_size": 8}, "batch_size was 4 and is 8"),
        ({"sequence_length": 32}, "sequence_length was 64 and is 32"),
    ],
)
def test_another_order_is_not_gone_on_with(
    small_shards: Path, settings: dict[str, Any], expected: str
) -> None:
    kept = Loader(stream_of(small_shards), first_step=3).position
    with pytest.raises(ConfigError, match=expected):
        kept.refuse_another(stream_of(small_shards, **settings).position(0))


@pytest.fixture
def damaged(small_shards: Path, tmp_path: Path) -> tuple[Path, Shard, int]:
    """A copy whose first shard has one flipped bit in the tokens of one sample."""
    folder = Path(shutil.copytree(small_shards, tmp_path / "damaged"))
    with Reader(str(folder)) as reader:
        shard = reader.manifest.shards_of("train")[0]
        row = 2
        place = reader.index(shard)[row]["npy"]
        start, size = int(place["start"]), int(place["bytes"])
    with (folder / shard.name).open("r+b") as file:
        file.seek(start + size - 3)
        byte = file.read(1)[0]
        file.seek(start + size - 3)
        file.write(bytes([byte ^ 1]))
    return folder, shard, row


def read_until(loader: Loader, steps: int) -> list[Batch]:
    return list(islice(loader, steps))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_sample_ends_the_reading_with_its_shard_key_and_offset(
    damaged: tuple[Path, Shard, int], workers: int
) -> None:
    folder, shard, row = damaged
    stream = stream_of(folder)
    with Loader(stream, workers=workers) as loader, pytest.raises(ShardIntegrityError) as error:
        read_until(loader, stream.num_sequences)
    assert error.value.shard == shard.name
    assert error.value.key == stream.reader.key(shard, row)
    assert error.value.offset == int(stream.reader.index(shard)[row]["npy"]["start"])
    assert shard.name in str(error.value)
    at = loader.position.step
    with pytest.raises(ShardIntegrityError):
        stream.batch(at)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("workers", "start_method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_a_dropped_sample_is_told_to_the_process_that_keeps_the_budget(
    damaged: tuple[Path, Shard, int], workers: int, start_method: str | None
) -> None:
    folder, shard, row = damaged
    told: list[tuple[str, int]] = []
    stream = stream_of(folder, drop=lambda error, shard, row: told.append((error.shard, row)))
    with Loader(stream, workers=workers, start_method=start_method) as loader:
        batches = read_until(loader, -(-stream.num_sequences // BATCH))
    assert set(told) == {(shard.name, row)}
    holes = sum(int(np.count_nonzero(batch.documents == PADDING)) for batch in batches)
    assert holes > 0
    assert all((batch.targets[batch.documents == PADDING] == -100).all() for batch in batches)


def test_a_spent_budget_ends_the_reading_even_when_a_worker_dropped(
    damaged: tuple[Path, Shard, int], refuse: Callable[..., None]
) -> None:
    stream = stream_of(damaged[0], drop=refuse)
    with Loader(stream, workers=2) as loader, pytest.raises(ShardIntegrityError, match="too many"):
        read_until(loader, stream.num_sequences)


@pytest.fixture
def refuse() -> Callable[..., None]:
    def drop(error: ShardIntegrityError, shard: Shard, row: int) -> None:
        raise ShardIntegrityError(f"too many: {error}", shard=shard.name)

    return drop
