"""Which order of samples a run has read: its checkpoints say it, and nothing is inferred from settings.

A checkpoint holds the position in the data that it was written at, with everything the order rests on. That
is true of what was trained, also after a setting was changed or a run was moved to another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from components import storage
from components.data.position import Position
from components.errors import ConfigError

CHECKPOINTS = ("checkpoints", "pretrain")
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TrainedOrder:
    """What is needed to say which samples a step of a run read."""

    position: Position
    """Of the newest checkpoint."""
    ranks: int
    """Among which the batch of the step was divided."""
    shards: str
    """Where the data set lies."""
    checkpoint: str
    """That says all this of the step: the first one after it, or the newest."""
    run: str
    """Folder of the run, or nothing where a checkpoint lies by itself."""


class _Checkpoint(NamedTuple):
    """What the manifest of a checkpoint says of its data."""

    place: str
    step: int
    ranks: int
    shards: str
    position: Position


def trained_order(url: str, step: int) -> TrainedOrder:
    """The order read by a run, or by the run of one checkpoint, at a step, which is counted from 1."""
    url = url.rstrip("/")
    run = url if storage.exists(storage.join(url, "records")) else ""
    known = _of_run(url) if run else _alone(url)
    newest, said = known[-1], next((one for one in known if one.step >= step), known[-1])
    run = run or _run_around(url)
    return TrainedOrder(newest.position, said.ranks, _where_now(newest.shards, run), said.place, run)


def _of_run(url: str) -> list[_Checkpoint]:
    """Its checkpoints that say where they were in the data, by step."""
    folder = storage.join(url, *CHECKPOINTS)
    places = [storage.join(folder, name) for name in storage.listing(folder) if not name.endswith(".json")]
    found = [said for place in places if (said := _said_by(place))]
    if not found:
        raise ConfigError(
            f"no checkpoint below {folder} says where it was in the data; wait for the first one, or run "
            "`stanchion run pretrain`"
        )
    return sorted(found, key=lambda one: one.step)


def _alone(url: str) -> list[_Checkpoint]:
    if (said := _said_by(url)) is None:
        raise ConfigError(
            f"{url} is neither a run nor a checkpoint of pre-training: give a folder with records/ in it, or "
            "a checkpoint that says where it was in the data"
        )
    return [said]


def _said_by(place: str) -> _Checkpoint | None:
    """Nothing, where there is no whole manifest, or one of another stage or an older layout."""
    try:
        found = storage.read_json(storage.join(place, MANIFEST))
        position = Position.model_validate(found["data_position"])
        return _Checkpoint(
            place, int(found["step"]), int(found["world_size"]), str(found["shards"]), position
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def _run_around(checkpoint: str) -> str:
    """The run in whose folder a checkpoint lies: RUN/checkpoints/pretrain/step-000400."""
    run = checkpoint.rsplit("/", 3)[0] if checkpoint.count("/") >= 3 else ""
    return run if run and storage.exists(storage.join(run, "records")) else ""


def _where_now(shards: str, run: str) -> str:
    """A run that was moved has its data set beside it still."""
    if not storage.exists(storage.join(shards, MANIFEST)) and run:
        return storage.join(run, shards.rstrip("/").rpartition("/")[2])
    return shards
