"""The proofs about checkpoints on seeded samples: damages by kind of file, kills while saving, full disks."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from case_studies.proofs import checkpoint_damage, failed_saves, killed_saves
from components.checkpoints import locate, manifest, state
from components.checkpoints.restore import open_checkpoint
from components.errors import CheckpointCorrupt, JobError, NotValidated
from components.jobs import Job

Train = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def trial(small_job: Train, tmp_path_factory: pytest.TempPathFactory) -> checkpoint_damage.Trial:
    """Two signed, validated checkpoints of two ranks."""
    folder = tmp_path_factory.mktemp("two-ranks")
    with checkpoint_damage.key(folder / "key"):
        assert small_job(folder, processes=2).returncode == 0
        for name in (checkpoint_damage.OLDER, checkpoint_damage.NEWER):
            state.validate(str(folder / "checkpoints" / name), [])
    return checkpoint_damage.Trial(folder / "checkpoints")


@pytest.fixture
def newer(trial: checkpoint_damage.Trial) -> Path:
    return trial.folder / checkpoint_damage.NEWER


def test_every_damage_of_a_checkpoint_is_refused_by_name(trial: checkpoint_damage.Trial) -> None:
    key = trial.folder.parent / "key"
    found = checkpoint_damage.judged(trial, random.Random(7), 200, key)
    assert found["holds"], found["wrong"]
    assert found["refused"] == 200
    kinds = {name.partition(": ")[2] for name in found["outcomes"]}
    assert kinds == {checkpoint_damage.kind_of(path) for path in trial.whole}
    for name in (checkpoint_damage.OLDER, checkpoint_damage.NEWER):
        open_checkpoint(str(trial.folder / name))  # whole again


@pytest.mark.parametrize("kind", ["weights", "weights for DeepSpeed", "optimizer"])
def test_a_flipped_bit_names_the_tensor_it_lies_in(trial: checkpoint_damage.Trial, kind: str) -> None:
    path = next(
        at
        for at in trial.whole
        if at.startswith("step-000004") and trial.tensors[at] and checkpoint_damage.kind_of(at) == kind
    )
    start, end, name = trial.tensors[path][-1]
    content = bytearray(trial.whole[path])
    content[(start + end) // 2] ^= 4
    damage = checkpoint_damage.Damage("flip", kind, {path: bytes(content)}, (name,))
    with trial.done(damage), pytest.raises(CheckpointCorrupt, match=f"'{name}' differs from what was saved"):
        open_checkpoint(str(trial.folder / "step-000004"))


def test_a_damaged_table_of_contents_names_what_is_lost_with_it(newer: Path, tmp_path: Path) -> None:
    content = manifest.read(newer)
    for name in ("model.safetensors", "deepspeed/mp_rank_00_model_states.pt"):
        cut = tmp_path / Path(name).stem
        shutil.copytree(newer, cut)
        (cut / name).write_bytes((cut / name).read_bytes()[:50])
        found = locate.damage(cut, name, content.tensors, content.partitions)
        assert found is not None
        assert not found.readable
        assert found.tensors == list(content.tensors)
        assert "its table of contents is damaged, and with it are lost 'model.embed" in str(found)


def test_damage_around_the_tensors_names_none(newer: Path, tmp_path: Path) -> None:
    content = manifest.read(newer)
    whole = (newer / "deepspeed" / "mp_rank_00_model_states.pt").read_bytes()
    (tmp_path / "deepspeed").mkdir()
    place = tmp_path / "deepspeed" / "mp_rank_00_model_states.pt"
    place.write_bytes(whole.replace(b"serialization_id", b"serialization_iD", 1))
    found = locate.damage(tmp_path, "deepspeed/mp_rank_00_model_states.pt", content.tensors, [])
    assert str(found) == "no tensor in it differs from what was saved, what is around them does"
    assert locate.damage(newer, "config.json", content.tensors, content.partitions) is None


def test_a_state_that_has_rotted_vouches_for_nothing(
    make_checkpoint: Callable[..., str], tmp_path: Path
) -> None:
    url = make_checkpoint(tmp_path, 4)
    open_checkpoint(url)
    place = Path(state.url_of(url))
    whole = place.read_bytes()
    at = whole.index(b'"at": "20') + len(b'"at": "20')
    place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])  # another year, and valid JSON
    with pytest.raises(NotValidated, match=r"step-000004\.state\.json is not a state: its checksum"):
        open_checkpoint(url)
    place.write_bytes(whole)
    open_checkpoint(url)


@pytest.mark.slow
def test_jobs_killed_while_they_save_go_on_to_the_same_last_bit() -> None:
    found = killed_saves.prove(seed=3, count=6)
    assert found["holds"], found["wrong"]
    assert found["kills_while_saving"] >= 6
    assert found["resumed"] >= 5
    assert found["steps_compared"] > killed_saves.STEPS


def test_a_plan_reaches_every_point_of_every_save() -> None:
    plan = killed_saves.plan(random.Random(1), chains=40)
    assert sum(map(len, plan)) == 200
    named = {(kill.step, kill.victims[0], kill.point) for row in plan for kill in row if kill.point}
    assert named == {(step, *point) for step in killed_saves.SAVES for point in killed_saves.POINTS}
    assert all([kill.step for kill in row] == list(killed_saves.SAVES) for row in plan)


def test_the_proof_of_kills_sees_a_checkpoint_that_is_not_whole(
    make_checkpoint: Callable[..., str], tmp_path: Path
) -> None:
    whole, other = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4)
    assert killed_saves.is_whole(whole)
    assert killed_saves.torn(str(tmp_path)) == []
    (Path(other) / "deepspeed" / "rank-0.pt").unlink()
    assert not killed_saves.is_whole(other)
    assert killed_saves.torn(str(tmp_path)) == [other]


def test_ranks_are_forked_only_from_a_process_without_threads(tmp_path: Path) -> None:
    import threading

    from case_studies.proofs import _forked
    from components.launchers import local

    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pytest.raises(JobError, match="threads, and only one may fork ranks"):
            _forked.launch(Job("none", "nothing", {}, tmp_path, 1), local.Config())
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.skipif(not failed_saves.can_mount(), reason="no user namespaces here, so no disk of its own")
def test_a_full_disk_and_a_read_only_tier_are_told_and_cost_what_the_policy_says() -> None:
    found = failed_saves.prove()
    assert found["holds"], {
        name: case for name, case in found["cases"].items() if not failed_saves.holds(case)
    }
    assert len(found["cases"]) == 4
