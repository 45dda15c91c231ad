"""The batches of one rank, step after step, read ahead by worker processes when asked.

What a batch holds is a function of its step, so workers share nothing: each reads whole steps, and they are
handed out in order. The position counts what was handed out; what lies ready in a worker was not seen by
anyone and is read again after a restart. Without workers there is no torch and no second process.

Workers pay when reading a batch takes a noticeable share of a step: long sequences from a remote store, or
a model so small that it waits. They cost a process each, and `prefetch` batches of memory in each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from components.data.manifest import Shard
from components.data.position import Position
from components.data.stream import Batch, TokenStream
from components.errors import ShardIntegrityError, StanchionError

Dropped = tuple[ShardIntegrityError, Shard, int]


class Loader:
    """This rank's `Batch`es from `first_step` on, without end; `close` it, or use it in a `with`."""

    def __init__(
        self,
        stream: TokenStream,
        *,
        first_step: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        prefetch: int = 2,
        start_method: str | None = None,
    ) -> None:
        self.stream, self.rank, self.world_size = stream, rank, world_size
        self.workers, self.prefetch, self.start_method = workers, prefetch, start_method
        self._step = first_step
        self._ahead: Any = None

    @property
    def position(self) -> Position:
        """From which to go on: every batch before it was handed out, none after it."""
        return self.stream.position(self._step)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """The next batch. After an error the same one is tried again."""
        batch = self._from_worker() if self.workers else self._read()
        self._step += 1
        return batch

    def close(self) -> None:
        """End the workers now; what they have read ahead is forgotten."""
        self._ahead = None  # the last reference to torch's iterator, which ends its workers when it goes

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Batch:
        return self.stream.batch(self._step, self.rank, self.world_size)

    def _from_worker(self) -> Batch:
        if self._ahead is None:
            self._ahead = self._start()
        try:
            arrays, dropped = _opened(next(self._ahead))
            for drop in dropped:
                assert self.stream.drop is not None, "a worker drops only when its stream may"
                self.stream.drop(*drop)
        except BaseException:
            self.close()
            raise
        return Batch(*arrays)

    def _start(self) -> Iterator[Any]:
        from torch.utils.data import DataLoader

        steps: Any = _Steps(self.stream, self.rank, self.world_size)
        return iter(
            DataLoader(
                steps,
                batch_size=None,
                sampler=itertools.count(self._step),  # endless, so without a length
                num_workers=self.workers,
                prefetch_factor=self.prefetch,
                collate_fn=_as_it_is,
                multiprocessing_context=self.start_method,
            )
        )


class _Steps:
    """What a worker holds: a batch for each step, as one array, so that it crosses in one piece of memory.

    Errors cross as values, since torch rebuilds what is raised from its text alone; so do drops, since they
    count when the batch is handed out, against the budget that the trainer keeps.
    """

    def __init__(self, stream: TokenStream, rank: int, world_size: int) -> None:
        self.stream, self.rank, self.world_size = stream, rank, world_size
        self.may_drop = stream.drop is not None

    def __getitem__(self, step: int) -> tuple[Any, list[Dropped]] | StanchionError:
        import torch

        dropped: list[Dropped] = []
        if self.may_drop:
            self.stream.drop = lambda *drop: dropped.append(drop)
        try:
            batch = self.stream.batch(step, self.rank, self.world_size)
        except StanchionError as error:
            return error
        return torch.from_numpy(np.stack([batch.inputs, batch.targets, batch.documents])), dropped


def _opened(answer: Any) -> tuple[Any, list[Dropped]]:
    if isinstance(answer, StanchionError):
        raise answer
    arrays, dropped = answer
    return arrays.numpy(), dropped


def _as_it_is(answer: Any) -> Any:
    return answer
