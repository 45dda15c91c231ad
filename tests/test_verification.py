"""`stanchion check`: one question for data sets, checkpoints, releases and whole runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from components import storage
from components.errors import ConfigError
from components.records import Artifact, RunFolder, open_stage
from components.verification import damaged_data_sets, verify


def failed(url: Path | str) -> list[str]:
    """Gates that said no, with the thing they were asked about."""
    return [
        f"{name} {v.gate}: {v.reason}"
        for name, verdicts in verify(str(url))
        for v in verdicts
        if not v.passed
    ]


@pytest.fixture
def run(tmp_path, small_shards) -> Path:
    """A run that made a data set, moved to another place since."""
    folder = RunFolder(str(tmp_path / "made"), "run-1")
    shutil.copytree(small_shards, folder.path("shards"))
    with open_stage(
        folder, "shard_dataset", settings={}, inputs=[], profile="laptop", devices=1, price_per_device_hour=0
    ) as stage:
        stage.outputs.append(Artifact(name="shards", url=folder.path("shards"), digest="d"))
    return Path(shutil.move(tmp_path / "made" / "run-1", tmp_path / "moved"))


def test_a_whole_data_set_passes(small_shards) -> None:
    ((name, (verdict,)),) = verify(str(small_shards))
    assert (name, verdict.gate, verdict.passed) == (Path(small_shards).name, "shards_match_manifest", True)


def test_a_run_is_checked_where_it_lies_now(run) -> None:
    assert [name for name, _ in verify(str(run))] == ["shards"]
    assert failed(run) == []


def test_a_damaged_shard_is_found_and_named(run) -> None:
    shard = next((run / "shards").glob("*.tar"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(content)
    (reason,) = failed(run)
    assert shard.name in reason


def test_every_fault_of_a_data_set_is_listed_with_shard_key_and_offset(run) -> None:
    first, second = sorted((run / "shards").glob("train-*.tar"))[:2]
    for shard in (first, second):
        shard.chmod(0o644)
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    (run / "shards" / "tokenizer.json").unlink()
    ((_, verdicts),) = verify(str(run))
    assert not any(verdict.passed for verdict in verdicts)
    found = [verdict.figures for verdict in verdicts]
    assert [one["shard"] for one in found] == [first.name, second.name, "tokenizer.json"]
    assert all(len(str(one["key"])) == 16 and isinstance(one["offset"], int) for one in found[:2])
    assert damaged_data_sets(verdicts) == [str(run / "shards")]


def test_what_no_rebuild_can_mend_is_not_sent_there(run) -> None:
    (run / "shards" / "tokenizer.json").unlink()
    ((_, verdicts),) = verify(str(run))
    assert [verdict.passed for verdict in verdicts] == [False]
    assert damaged_data_sets(verdicts) == []


def test_a_manifest_that_is_no_manifest_is_one_fault(run) -> None:
    for content in ("{}", "half of"):
        (run / "shards" / "manifest.json").write_text(content)
        (reason,) = failed(run)
        assert "manifest.json" in reason


def test_how_far_it_has_come_is_told_in_bytes(small_shards) -> None:
    told: list[tuple[int, int]] = []
    list(verify(str(small_shards), lambda done, total: told.append((done, total))))
    assert told == sorted(told)
    total = sum(path.stat().st_size for path in Path(small_shards).iterdir() if path.name != "manifest.json")
    assert told[-1] == (total, total)


def test_what_a_record_names_and_is_gone_does_not_pass_in_silence(run) -> None:
    shutil.rmtree(run / "shards")
    (reason,) = failed(run)
    assert "is gone" in reason


def test_a_folder_that_nothing_vouches_for_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="nothing vouches for it"):
        list(verify(str(tmp_path)))


def test_a_place_that_is_not_there_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="nothing at"):
        list(verify(storage.join(str(tmp_path), "nowhere")))


def test_a_folder_of_checkpoints_is_checked_one_by_one(small_checkpoints) -> None:
    judged = dict(verify(str(small_checkpoints)))
    assert sorted(judged) == sorted(p.name for p in Path(small_checkpoints).iterdir() if p.is_dir())
    said = {verdict.gate: verdict.passed for verdicts in judged.values() for verdict in verdicts}
    assert said["files_match_manifest"]
    assert said["weights_are_finite"]
