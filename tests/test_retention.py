"""Retention deletes what others replace, never the last that is good; a crash on the way misleads nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components import storage
from components.checkpoints import manifest, names, pointer, reread, restore, retention, state
from components.checkpoints.retention import Retention
from components.errors import NotValidated

ROOT = Path(__file__).parent.parent
Make = Callable[..., str]


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints lie: a folder, or a bucket of a real S3 server."""
    if request.param == "local":
        return str(tmp_path / "checkpoints")
    return storage.join(request.getfixturevalue("s3_root"), "checkpoints")


def steps(folder: str) -> list[int]:
    """Of all checkpoints that are there, oldest first."""
    return sorted(names.step_and_attempt(url)[0] for url in names.newest_first(folder))


def test_the_last_validated_and_every_nth_stay(folder: str, make_checkpoint: Make) -> None:
    for step in range(1, 9):
        make_checkpoint(folder, step)
    plan = retention.apply(folder, Retention(keep_last=2, keep_every=3))
    assert steps(folder) == [3, 6, 7, 8]
    assert plan.keep[storage.join(folder, "step-000003")] == "its step is a multiple of 3"
    assert plan.retire[storage.join(folder, "step-000005")] == "2 newer ones are validated"
    left = {name for name in storage.listing(folder) if name.endswith(names.STATE)}
    assert left == {f"step-{step:06d}.state.json" for step in (3, 6, 7, 8)}
    assert not retention.apply(folder, Retention(keep_last=2, keep_every=3)).retire
    for url in names.newest_first(folder):
        assert reread.faults(url) == []


def test_quarantined_ones_stay_for_the_post_mortem_up_to_a_count(folder: str, make_checkpoint: Make) -> None:
    make_checkpoint(folder, 1)
    for step in (2, 3, 4):
        make_checkpoint(folder, step, to="quarantined")
    retention.apply(folder, Retention(keep_quarantined=2))
    assert steps(folder) == [1, 3, 4]


def test_one_that_was_never_judged_goes_once_enough_newer_ones_are_validated(
    tmp_path: Path, make_checkpoint: Make
) -> None:
    make_checkpoint(tmp_path, 1, to="committed")
    make_checkpoint(tmp_path, 2)
    make_checkpoint(tmp_path, 3, to="committed")
    retention.apply(str(tmp_path), Retention(keep_last=2))
    assert steps(str(tmp_path)) == [1, 2, 3]
    make_checkpoint(tmp_path, 4)
    retention.apply(str(tmp_path), Retention(keep_last=2))
    assert steps(str(tmp_path)) == [2, 3, 4]


def test_a_rotten_newest_one_does_not_count(folder: str, make_checkpoint: Make) -> None:
    for step in (1, 2, 3):
        newest = make_checkpoint(folder, step)
    storage.write_bytes(storage.join(newest, "model.safetensors"), b"rot")
    retention.apply(folder, Retention(keep_last=1))
    known = state.read(newest)
    assert known is not None
    assert known.state == "quarantined"
    assert "model.safetensors has 3 bytes" in str(known.reason)
    assert steps(folder) == [2, 3]
    assert restore.open_checkpoint(storage.join(folder, "step-000002")).manifest.step == 2


def test_nothing_goes_when_nothing_that_is_validated_is_whole(
    tmp_path: Path, make_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Of three rotten ones each may hold what the next repair needs."""
    for step in (1, 2, 3):
        (Path(make_checkpoint(tmp_path, step)) / "model.safetensors").unlink()
    plan = retention.apply(str(tmp_path), Retention(keep_last=1, keep_quarantined=0))
    assert steps(str(tmp_path)) == [1, 2, 3]
    assert not plan.retire
    assert "nothing is deleted" in caplog.text


def test_only_what_is_retired_is_deleted(tmp_path: Path, make_checkpoint: Make) -> None:
    url = make_checkpoint(tmp_path, 1)
    with pytest.raises(ValueError, match="only what is retired is deleted"):
        retention.delete(url)
    assert reread.faults(url) == []


def test_what_stands_beside_and_was_never_committed_is_left_alone(
    tmp_path: Path, make_checkpoint: Make
) -> None:
    for step in (1, 2):
        make_checkpoint(tmp_path, step)
    (tmp_path / "step-000000").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    retention.apply(str(tmp_path), Retention(keep_last=1))
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == [
        "notes.txt",
        "step-000000",
        "step-000002",
        "step-000002.state.json",
        "validated.json",
    ]


KILLED = """
import os, signal, sys
from components import storage, local_files
from components.checkpoints import retention
left = int(sys.argv[2])

def mortal(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

for module, names in ((storage, ("replace_bytes", "remove")), (os, ("unlink", "rmdir", "replace"))):
    for name in names:
        setattr(module, name, mortal(getattr(module, name)))
retention.apply(sys.argv[1], retention.Retention(keep_last=1))
"""


def killed_after(folder: Path, writes: int) -> bool:
    """Apply retention in a process that is killed before its next write; whether it came so far."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(writes)], cwd=ROOT, timeout=60)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


@pytest.mark.slow
def test_a_kill_between_any_two_steps_leaves_nothing_that_a_reader_trusts(
    tmp_path: Path, make_checkpoint: Make
) -> None:
    writes, deaths = 0, 0
    while True:
        folder = tmp_path / f"after-{writes}"
        for step in (1, 2):
            make_checkpoint(folder, step)
        newest, old = folder / "step-000002", folder / "step-000001"
        killed = killed_after(folder, writes)
        deaths += killed
        assert restore.open_checkpoint(str(newest)).manifest.step == 2
        pointed = pointer.read(str(folder))
        assert pointed is not None
        assert pointed.checkpoint == "step-000002"
        known = state.read(str(old))
        if known is not None and known.state == "validated":
            assert reread.faults(str(old)) == [], "what is still trusted is still whole"
        else:
            with pytest.raises(NotValidated):
                restore.open_checkpoint(str(old))
        retention.apply(str(folder), Retention(keep_last=1))
        assert steps(str(folder)) == [2]
        assert not Path(state.url_of(str(old))).exists()
        assert os.listdir(newest)
        if not killed:
            break
        writes += 1
    assert deaths >= 8, "the state, the manifest, each file, each folder, the state again"


def test_half_a_deletion_on_a_store_is_finished_the_next_time(s3_root: str, make_checkpoint: Make) -> None:
    old, _ = make_checkpoint(s3_root, 1), make_checkpoint(s3_root, 2)
    state.retire(old, "a test")
    storage.remove(storage.join(old, manifest.NAME))
    with pytest.raises(NotValidated, match="retired: a test"):
        restore.open_checkpoint(old)
    retention.apply(s3_root, Retention())
    assert storage.walk(old) == []
    assert state.read(old) is None
    assert steps(s3_root) == [2]
