"""Checkpoints are judged and let go while the job that makes them trains on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from components import storage
from components.checkpoints import state
from components.checkpoints.check import default_gates
from components.checkpoints.keeper import Keeper
from components.checkpoints.names import newest_first, step_and_attempt
from components.checkpoints.retention import Retention
from components.errors import GateRefused

Make = Callable[..., str]
FILES = default_gates("files_match_manifest")


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('s3_root')}/checkpoints"
    return str(tmp_path / "checkpoints")


def keeper_of(folder: str, tmp_path: Path, *gates: str, keep_last: int = 2) -> Keeper:
    chosen = default_gates(*gates) if gates else FILES
    return Keeper(folder, chosen, Retention(keep_last=keep_last), tmp_path / "scratch", look_seconds=0)


def looks(keeper: Keeper) -> None:
    """A look, to its end; what it refuses is kept for the next call."""
    keeper()
    assert keeper._thread
    keeper._thread.join()


def standing(folder: str) -> dict[int, str]:
    known = {step_and_attempt(url)[0]: state.read(url) for url in newest_first(folder)}
    return {step: found.state for step, found in known.items() if found is not None}


def test_while_a_job_saves_the_last_ones_are_validated_and_older_ones_go(
    folder: str, tmp_path: Path, make_checkpoint: Make
) -> None:
    keeper = keeper_of(folder, tmp_path)
    for step in (2, 4, 6, 8):
        make_checkpoint(folder, step, to="committed")
        looks(keeper)
    assert standing(folder) == {8: "validated", 6: "validated"}
    assert not list((tmp_path / "scratch").iterdir()), "copies of what lies in a store are not left behind"


def test_of_several_that_wait_the_newest_is_judged(
    folder: str, tmp_path: Path, make_checkpoint: Make
) -> None:
    for step in (2, 4, 6):
        make_checkpoint(folder, step, to="committed")
    keeper = keeper_of(folder, tmp_path)
    looks(keeper)
    looks(keeper)
    assert standing(folder) == {6: "validated", 4: "committed", 2: "committed"}


def test_training_that_went_wrong_is_refused_once_and_the_next_attempt_is_not_blamed(
    folder: str, tmp_path: Path, make_checkpoint: Make
) -> None:
    make_checkpoint(folder, 2)
    make_checkpoint(folder, 4, to="committed")  # its weights are no weights
    keeper = keeper_of(folder, tmp_path, "files_match_manifest", "weights_are_finite")
    looks(keeper)
    with pytest.raises(GateRefused, match="step-000004 refused by weights_are_finite"):
        keeper()
    looks(keeper)
    assert standing(folder) == {4: "quarantined", 2: "validated"}


def test_what_is_refused_after_an_attempt_has_ended_is_not_held_against_the_next(
    folder: str, tmp_path: Path, make_checkpoint: Make
) -> None:
    make_checkpoint(folder, 4, to="committed")
    keeper = keeper_of(folder, tmp_path, "files_match_manifest", "weights_are_finite")
    keeper()
    keeper.rest()
    assert standing(folder) == {4: "quarantined"}
    keeper()
    keeper.rest()


def test_files_that_rot_are_set_aside_and_the_job_goes_on(
    tmp_path: Path, make_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    url = make_checkpoint(tmp_path, 2, to="committed")
    storage.local_path(storage.join(url, "model.safetensors")).write_bytes(b"rotten")
    keeper = keeper_of(str(tmp_path), tmp_path)
    looks(keeper)
    looks(keeper)
    assert standing(str(tmp_path)) == {2: "quarantined"}
    assert "the job goes on" in caplog.text


def test_a_store_that_is_away_costs_a_look_and_not_the_job(
    tmp_path: Path, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path, 2, to="committed")
    keeper = keeper_of(str(tmp_path), tmp_path)

    def away(_: str) -> bytes:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "read_bytes", away)
        looks(keeper)
    assert "could not be judged just now: OSError: the store is away" in caplog.text
    looks(keeper)
    assert standing(str(tmp_path)) == {2: "validated"}


def test_a_look_never_keeps_whoever_asks_waiting(
    tmp_path: Path, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, 2, to="committed")
    go_on, read = threading.Event(), storage.read_bytes
    monkeypatch.setattr(storage, "read_bytes", lambda url: (go_on.wait(60), read(url))[1])
    with keeper_of(str(tmp_path), tmp_path) as keeper:
        for _ in range(3):
            keeper()
        assert [thread.name for thread in threading.enumerate()].count("keeper") == 1
        go_on.set()
    assert standing(str(tmp_path)) == {2: "validated"}


def test_without_gates_nothing_is_judged_and_nothing_goes(
    tmp_path: Path, make_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for step in (2, 4, 6):
        make_checkpoint(tmp_path, step, to="committed")
    keeper = Keeper(str(tmp_path), {}, Retention(keep_last=1), tmp_path / "scratch", look_seconds=0)
    keeper()
    keeper.rest()
    assert standing(str(tmp_path)) == {6: "committed", 4: "committed", 2: "committed"}
