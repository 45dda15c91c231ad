"""A checkpoint is used whole, validated and unchanged, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.checkpoints import manifest, restore, state
from components.checkpoints.check import check_path, decide, default_gates, resumable
from components.checkpoints.restore import newest_committed, newest_validated, open_checkpoint
from components.checkpoints.save import free_name
from components.errors import CheckpointCorrupt, CheckpointError, GateRefused, NotValidated

FILES = (
    "model.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "deepspeed/mp_rank_00_model_states.pt",
    "deepspeed/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "random/rank-00000.json",
)


@pytest.fixture
def checkpoints(small_checkpoints: Path, tmp_path: Path) -> Path:
    """A copy, both of them validated."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(small_checkpoints, folder)
    for name in ("step-000002", "step-000004"):
        state.validate(str(folder / name), [])
    return folder


def flip_a_bit(path: Path, position: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * position)] ^= 1
    path.write_bytes(content)


def test_every_kind_of_file_of_a_checkpoint_is_tried_below(checkpoints: Path) -> None:
    assert set(manifest.read(checkpoints / "step-000004").files) == set(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("position", [0.0, 0.5, 0.999])
def test_one_flipped_bit_is_refused_and_its_file_named(checkpoints: Path, name: str, position: float) -> None:
    flip_a_bit(checkpoints / "step-000004" / name, position)
    with pytest.raises(CheckpointCorrupt, match=name):
        open_checkpoint(str(checkpoints / "step-000004"))


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused_and_named(checkpoints: Path, name: str) -> None:
    path = checkpoints / "step-000004" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointCorrupt, match=f"{name} has .* bytes"):
        open_checkpoint(str(checkpoints / "step-000004"))


def test_a_missing_and_an_extra_file_are_named(checkpoints: Path) -> None:
    (checkpoints / "step-000004" / "config.json").unlink()
    (checkpoints / "step-000004" / "deepspeed" / "more.pt").write_bytes(b"")
    with pytest.raises(CheckpointCorrupt, match=r"config\.json is missing; deepspeed/more\.pt is not in"):
        open_checkpoint(str(checkpoints / "step-000004"))


def test_a_manifest_that_was_edited_is_refused_even_when_it_fits_the_files(checkpoints: Path) -> None:
    folder = checkpoints / "step-000004"
    content = json.loads((folder / manifest.NAME).read_text())
    content["held_out"]["loss"] = 0.1
    (folder / manifest.NAME).write_text(json.dumps(content))
    with pytest.raises(CheckpointCorrupt, match=r"manifest\.json has SHA-256 .* was committed"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("position", [0.0, 0.5, 0.999])
def test_a_flipped_bit_in_the_manifest_is_refused(checkpoints: Path, position: float) -> None:
    flip_a_bit(checkpoints / "step-000004" / manifest.NAME, position)
    with pytest.raises(CheckpointCorrupt, match=r"manifest\.json"):
        open_checkpoint(str(checkpoints / "step-000004"))


def test_a_checkpoint_without_a_manifest_was_never_finished(checkpoints: Path) -> None:
    (checkpoints / "step-000004" / manifest.NAME).unlink()
    with pytest.raises(CheckpointCorrupt, match="never finished"):
        open_checkpoint(str(checkpoints / "step-000004"))


def test_a_committed_checkpoint_is_not_used_before_a_gate_has_seen_it(small_checkpoints: Path) -> None:
    with pytest.raises(NotValidated, match="committed but not validated"):
        open_checkpoint(str(small_checkpoints / "step-000004"))
    assert newest_validated(str(small_checkpoints)) is None
    assert newest_committed(str(small_checkpoints)) == str(small_checkpoints / "step-000004")


def test_a_folder_that_nobody_committed_is_no_checkpoint(checkpoints: Path) -> None:
    shutil.copytree(checkpoints / "step-000004", checkpoints / "step-000006")
    with pytest.raises(NotValidated, match="never committed"):
        open_checkpoint(str(checkpoints / "step-000006"))
    assert resumable(str(checkpoints)) == str(checkpoints / "step-000004")


def test_a_quarantined_checkpoint_is_never_loaded_again(checkpoints: Path) -> None:
    url = str(checkpoints / "step-000004")
    state.quarantine(url, "its loss did not reproduce")
    with pytest.raises(NotValidated, match="quarantined: its loss did not reproduce"):
        open_checkpoint(url)
    with pytest.raises(NotValidated, match="never comes back"):
        state.validate(url, [])
    assert resumable(str(checkpoints)) == str(checkpoints / "step-000002")
    assert newest_committed(str(checkpoints)) == str(checkpoints / "step-000002")


def test_the_newest_good_checkpoint_is_found_behind_a_rotten_one(checkpoints: Path) -> None:
    flip_a_bit(checkpoints / "step-000004" / "model.safetensors")
    found = newest_validated(str(checkpoints))
    assert found is not None
    assert found.manifest.step == 2
    rotten = state.read(str(checkpoints / "step-000004"))
    assert rotten is not None
    assert rotten.state == "quarantined"
    (fault,) = restore.quarantine_faults(str(checkpoints))
    assert fault.kind == "corruption"
    assert "model.safetensors" in fault.detail


def test_a_job_goes_on_only_from_what_the_file_gates_have_passed(
    small_checkpoints: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(small_checkpoints, folder)
    flip_a_bit(folder / "step-000004" / "deepspeed" / "mp_rank_00_model_states.pt")
    assert resumable(str(folder)) == str(folder / "step-000002")
    states = [state.read(str(folder / name)) for name in ("step-000002", "step-000004")]
    assert [known.state for known in states if known] == ["validated", "quarantined"]


def test_a_refused_checkpoint_is_quarantined_with_the_figures(
    small_checkpoints: Path, small_shards: Path, tmp_path: Path
) -> None:
    url = str(shutil.copytree(small_checkpoints, tmp_path / "checkpoints") / "step-000004")
    gates = default_gates("files_match_manifest", "beats_a_unigram_model")
    with pytest.raises(GateRefused, match="beats_a_unigram_model: held-out loss"):
        decide(url, gates, shards=str(small_shards))
    known = state.read(url)
    assert known is not None
    assert (known.state, len(known.verdicts)) == ("quarantined", 2)
    assert not restore.quarantine_faults(str(tmp_path / "checkpoints")), "a weak model is no corruption"


def test_a_checkpoint_with_a_refusal_cannot_be_validated(checkpoints: Path) -> None:
    (verdict,) = [v for v in check_path(checkpoints / "missing") if v.gate == "files_match_manifest"]
    with pytest.raises(CheckpointError, match="files_match_manifest refused it"):
        state.validate(str(checkpoints / "step-000004"), [verdict])


def test_a_crash_between_files_and_manifest_leaves_nothing_to_load(
    small_job: Callable[..., Any], tmp_path: Path
) -> None:
    """The rank is killed by the operating system at the moment the manifest would be written."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'torch.distributed.run' not in sys.argv and os.environ.get('RANK'):\n"
        "    from components.checkpoints import manifest\n"
        "    manifest.seal = lambda *_: os.kill(os.getpid(), 9)\n"
    )
    done = small_job(tmp_path, environment={"PYTHONPATH": f"{site}:{Path(__file__).parent.parent}"})
    assert done.returncode != 0
    assert (tmp_path / "scratch" / "step-000002.partial" / "model.safetensors").exists(), done.stderr[-2000:]
    assert newest_committed(str(tmp_path / "checkpoints")) is None
    assert resumable(str(tmp_path / "checkpoints")) is None


def test_a_step_that_was_rolled_back_is_saved_again_under_another_name(checkpoints: Path) -> None:
    assert free_name(str(checkpoints), 4) == "step-000004-2"
    assert free_name(str(checkpoints), 6) == "step-000006"
    shutil.copytree(checkpoints / "step-000004", checkpoints / "step-000004-2")
    state.commit(str(checkpoints / "step-000004-2"), state.committed_digest(str(checkpoints / "step-000004")))
    assert newest_committed(str(checkpoints)) == str(checkpoints / "step-000004-2")
