"""Global batches are the same, in order and to the last token, whoever reads them and whenever it is killed.

A job of some world size and number of loader workers is killed at a step and goes on, from the few hundred
bytes of its checkpoint, with another world size and other workers. Claimed: its batches are those of one
process that was never interrupted; nothing is repeated, nothing left out; every rank holds equally many rows.

How it is tried: cases are drawn from a seed, over packings, mixtures, block sizes and shards of 1 to 9
documents. Every worker is a stream of its own, sent through pickle as to another process, and has read ahead
when the kill comes. The one process is itself compared with Python's `tarfile`, which knows nothing of us.
Besides the drawn cases, all of six world sizes with four worker counts, and a few with torch's real workers.
"""

from __future__ import annotations

import math
import pickle
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from case_studies.proofs import _data
from components.data.packing import Config as Packing
from components.data.position import Position
from components.data.reader import Reader
from components.data.stream import Origin, TokenStream

TITLE = "The same global batches for any ranks, workers and kill"
WORLDS = (1, 2, 3, 4, 6, 8)
WORKERS = (0, 1, 2, 4)
READ_AHEAD = 2
STEPS = 12
DATA_SETS = {"uneven": _data.UNEVEN, "mixed": _data.MIXED, "even": _data.EVEN}
MIXTURE = {"code": 0.5, "prose": 0.3, "talk": 0.2}


@dataclass(frozen=True)
class Case:
    """A job, its kill, and how it goes on."""

    data: str
    world: int
    workers: int
    kill_step: int
    new_world: int
    new_workers: int
    batch_size: int
    sequence_length: int
    packing: str
    mask: bool
    mixture: bool
    block_items: int
    seed: int


class Row(NamedTuple):
    """One row of a global batch: where it comes from, and all of its numbers."""

    source: str
    epoch: int
    shard: str
    sequence: int
    content: bytes


class Outcome(NamedTuple):
    """What a case showed."""

    replayed: int
    lost: int
    different: int
    """Rows whose place or content is not that of the uninterrupted reader."""
    uneven: int
    """Steps at which ranks held unequally many rows."""


def prove(*, seed: int = 0, count: int = 2000) -> dict[str, Any]:
    """Draw that many cases; then every world with every number of workers; then torch's own workers."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = make_data(Path(scratch))
        draw = random.Random(seed)
        drawn = [drawn_case(draw) for _ in range(count)]
        groups = {
            "drawn": (drawn, False),
            "exhaustive": (list(exhaustive_cases()), False),
            "torch_workers": (real_cases(), True),
        }
        figures, failed = {}, []
        for name, (cases, real) in groups.items():
            outcomes = [(case, tried(folders, case, real=real)) for case in cases]
            figures[name] = summary(outcome for _, outcome in outcomes)
            failed += [asdict(case) for case, outcome in outcomes if any(outcome)]
    return {"holds": not failed, "cases": figures, "failed": failed[:10]}


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Sums over cases."""
    found = list(outcomes)
    totals = {name: sum(getattr(one, name) for one in found) for name in Outcome._fields}
    return {"cases": len(found), **totals}


def make_data(folder: Path) -> dict[str, Path]:
    """The data sets of all cases."""
    return {name: _data.make(folder / name, parts, seed=len(name)) for name, parts in DATA_SETS.items()}


def drawn_case(draw: random.Random) -> Case:
    """A case by chance; batches divide over both world sizes."""
    world, new_world = draw.choice(WORLDS), draw.choice(WORLDS)
    mixture = draw.random() < 0.4
    least = math.lcm(world, new_world)
    smallest = least * math.ceil(5 / least) if mixture else least
    return Case(
        data="mixed" if mixture else draw.choice(list(DATA_SETS)),
        world=world,
        workers=draw.choice(WORKERS),
        kill_step=draw.randint(0, STEPS - 1),
        new_world=new_world,
        new_workers=draw.choice(WORKERS),
        batch_size=smallest * draw.randint(1, 2),
        sequence_length=draw.choice((1, 7, 16, 33, 64)),
        packing=draw.choice(("concatenate", "whole_documents")),
        mask=draw.random() < 0.5,
        mixture=mixture,
        block_items=draw.choice((1, 3, 16, 1 << 18)),
        seed=draw.randrange(1 << 16),
    )


def exhaustive_cases(kills: Iterable[int] = (1, 7)) -> Iterable[Case]:
    """All worlds with all numbers of workers, into all worlds, at a global batch of 24."""
    fixed = {"batch_size": 24, "sequence_length": 16, "mask": False, "mixture": True, "block_items": 64}
    for kill in kills:
        for world in WORLDS:
            for workers in WORKERS:
                for new_world in WORLDS:
                    yield Case(
                        data="mixed",
                        world=world,
                        workers=workers,
                        kill_step=kill,
                        new_world=new_world,
                        new_workers=WORKERS[(world + new_world) % len(WORKERS)],
                        packing="concatenate",
                        seed=kill,
                        **fixed,  # type: ignore[arg-type]
                    )


def real_cases() -> list[Case]:
    """Few, since each starts up to eight processes; torch warns of more workers than cores."""
    plain = {"data": "uneven", "sequence_length": 16, "mask": True, "mixture": False, "block_items": 16}
    ranks = ((1, 2, 2, 1), (2, 2, 1, 2), (4, 1, 2, 2))
    return [
        Case(
            world=world,
            workers=workers,
            new_world=new_world,
            new_workers=new_workers,
            kill_step=5,
            batch_size=8,
            packing=packing,
            seed=3,
            **plain,  # type: ignore[arg-type]
        )
        for (world, workers, new_world, new_workers), packing in zip(
            ranks, ("concatenate", "whole_documents", "concatenate"), strict=True
        )
    ]


def tried(folders: dict[str, Path], case: Case, *, real: bool = False) -> Outcome:
    """Run a case against the uninterrupted reader, and that one against Python's tarfile."""
    folder, read = folders[case.data], _with_torch if real else _with_models
    with Reader(str(folder)) as reader:
        alone = stream_of(reader, case)
        expected = [_rows(alone, step) for step in range(STEPS)]
        _compare_with_tarfile(alone, expected, folder)
        first, kept = read(stream_of(reader, case), case.world, case.workers, 0, case.kill_step)
    position = Position.model_validate_json(kept.model_dump_json())
    with Reader(str(folder)) as reader:
        again = stream_of(reader, case)
        position.refuse_another(again.position(0))
        second, _ = read(again, case.new_world, case.new_workers, position.step, STEPS)
    return _compared(expected, first + second, case)


def stream_of(reader: Reader, case: Case) -> TokenStream:
    """As a job would open it."""
    return TokenStream(
        reader,
        "train",
        sequence_length=case.sequence_length,
        batch_size=case.batch_size,
        seed=case.seed,
        packing=Packing.model_validate({"kind": case.packing, "mask_documents": case.mask}),
        mixture=MIXTURE if case.mixture else None,
        block_items=case.block_items,
    )


Global = list[list[Row]]
"""The rows of one step, by rank."""


def _with_models(
    stream: TokenStream, world: int, workers: int, start: int, stop: int
) -> tuple[list[Global], Position]:
    """Each worker of each rank is a copy of its own that reads whole steps, and some more than are used."""
    copies = [[pickle.loads(pickle.dumps(stream)) for _ in range(max(workers, 1))] for _ in range(world)]
    done: list[Global] = []
    for step in range(start, stop):
        ranks = [copies[rank][(step - start) % max(workers, 1)] for rank in range(world)]
        done.append([_rows(copy, step, rank, world) for rank, copy in enumerate(ranks)])
    if workers:
        for ahead in range(READ_AHEAD):
            _rows(copies[0][ahead % workers], stop + ahead, 0, world)
    for copy in (copy for of_rank in copies for copy in of_rank):
        copy.reader.close()
    return done, stream.position(stop)


def _with_torch(
    stream: TokenStream, world: int, workers: int, start: int, stop: int
) -> tuple[list[Global], Position]:
    """The loader that training uses, with torch's worker processes."""
    from components.data.loader import Loader

    loaders = [
        Loader(stream, first_step=start, rank=rank, world_size=world, workers=workers)
        for rank in range(world)
    ]
    try:
        done = []
        for step in range(start, stop):
            batches = [next(loader) for loader in loaders]
            share = stream.batch_size // world
            done.append([_named(stream, batch, step, rank * share) for rank, batch in enumerate(batches)])
        return done, loaders[0].position
    finally:
        for loader in loaders:
            loader.close()


def _rows(stream: TokenStream, step: int, rank: int = 0, world: int = 1) -> list[Row]:
    share = stream.batch_size // world
    return _named(stream, stream.batch(step, rank, world), step, rank * share)


def _named(stream: TokenStream, batch: Any, step: int, first: int) -> list[Row]:
    rows = []
    for place in range(len(batch.inputs)):
        origin = stream.origin(step, first + place)
        numbers = (batch.inputs[place], batch.targets[place], batch.documents[place])
        content = b"".join(np.ascontiguousarray(part).tobytes() for part in numbers)
        rows.append(Row(origin.source, origin.epoch, origin.shard.name, origin.sequence, content))
    return rows


def _compared(expected: list[list[Row]], found: list[Global], case: Case) -> Outcome:
    ours = [[row for rank in ranks for row in rank] for ranks in found]
    wanted, got = (Counter(row[:4] for step in steps for row in step) for steps in (expected, ours))
    pairs = [(a, b) for one, two in zip(expected, ours, strict=True) for a, b in zip(one, two, strict=True)]
    return Outcome(
        replayed=sum((got - wanted).values()),
        lost=sum((wanted - got).values()),
        different=sum(a != b for a, b in pairs),
        uneven=sum(len(set(map(len, ranks))) != 1 for ranks in found),
    )


def _compare_with_tarfile(stream: TokenStream, expected: list[list[Row]], folder: Path) -> None:
    """Every row is what its tar says, and an epoch has each sequence of each source exactly once."""
    seen: Counter[Any] = Counter()
    for step, rows in enumerate(expected):
        for place, row in enumerate(rows):
            seen[row[:4]] += 1
            inputs = np.frombuffer(row.content, np.int64)[: stream.sequence_length]
            if inputs.tolist() != _inputs(stream, stream.origin(step, place), folder):
                raise AssertionError(f"row {place} of step {step} is not what {row.shard} says")
    if repeated := [row for row, times in seen.items() if times != 1]:
        raise AssertionError(f"{repeated[0]} came twice in one epoch")


def _inputs(stream: TokenStream, origin: Origin, folder: Path) -> list[int]:
    documents = _data.tokens_in(folder / origin.shard.name)
    length = stream.sequence_length
    if stream.packing.kind == "concatenate":
        line = _line(folder / origin.shard.name)
        return line[origin.sequence * length : (origin.sequence + 1) * length]
    filled = [
        int(token) for piece in origin.pieces for token in documents[piece.row][piece.start : piece.stop]
    ]
    return (filled + [0] * (length + 1 - len(filled)))[:length]


@lru_cache(maxsize=64)
def _line(tar: Path) -> list[int]:
    return [int(token) for document in _data.tokens_in(tar) for token in document]
