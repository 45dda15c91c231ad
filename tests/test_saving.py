"""Training waits for a copy in memory; what is written of it is whole, or it is an error that is heard."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components.checkpoints import commit, manifest, rank_files, state
from components.checkpoints.hashed_file import HashedFile
from components.checkpoints.rank_files import Report
from components.checkpoints.restore import newest_first
from components.checkpoints.snapshot import Memory
from components.contents import entry
from components.errors import CheckpointCorrupt, CheckpointError
from components.observability import events
from components.reliability.faults import Drill

Job = Callable[..., subprocess.CompletedProcess[str]]


def told(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events of rank 0."""
    return events.read(folder / "job" / "events", kind, rank=0)


def test_training_goes_on_while_a_checkpoint_is_written(small_job: Job, tmp_path: Path) -> None:
    slow = Drill(kind="sleep", rank=0, step=2, phase="save: copied", seconds=3)
    done = small_job(tmp_path, steps=4, checkpoint_every=2, environment=slow.environment)
    assert done.returncode == 0, done.stderr
    first, last = told(tmp_path, "checkpoint")
    assert first["seconds_to_save"] > 3 > 1 > first["seconds_stalled"]
    third = next(event for event in told(tmp_path, "step") if event["step"] == 3)
    assert third["at"] < first["at"]
    assert [Path(one["checkpoint"]).name for one in (first, last)] == ["step-000002", "step-000004"]


def test_a_checkpoint_holds_the_state_of_its_step_though_training_went_on(
    small_job: Job, small_checkpoints: Path, tmp_path: Path
) -> None:
    slow = Drill(kind="sleep", rank=0, step=2, phase="save: copied", seconds=2)
    assert small_job(tmp_path, environment=slow.environment).returncode == 0
    late, usual = (
        manifest.read(folder / "step-000002") for folder in (tmp_path / "checkpoints", small_checkpoints)
    )
    assert late.tensors == usual.tensors
    assert late.partitions == usual.partitions
    assert manifest.read(tmp_path / "checkpoints" / "step-000004").tensors != late.tensors


def test_a_save_that_fails_ends_the_job_at_the_next_step(small_job: Job, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("a file, where a folder should be")
    tier = {"copy_to": str(tmp_path / "elsewhere" / "tier")}
    done = small_job(tmp_path, steps=6, checkpoints=tier)
    assert done.returncode != 0
    assert "its copy in" in done.stderr
    assert [Path(url).name for url in newest_first(str(tmp_path / "checkpoints"))] == ["step-000002"]


def test_by_policy_training_goes_on_without_the_second_tier(small_job: Job, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("a file, where a folder should be")
    tier = {"copy_to": str(tmp_path / "elsewhere" / "tier"), "on_failure": "continue"}
    done = small_job(tmp_path, checkpoints=tier)
    assert done.returncode == 0, done.stderr
    assert [one["step"] for one in told(tmp_path, "checkpoint_failed")] == [2, 4]
    assert all("whole, but its copy" in one["error"] for one in told(tmp_path, "checkpoint_failed"))


def test_a_second_tier_holds_the_same_checkpoints(small_job: Job, tmp_path: Path) -> None:
    done = small_job(tmp_path, steps=2, processes=2, checkpoints={"copy_to": str(tmp_path / "tier")})
    assert done.returncode == 0, done.stderr
    one, other = (tmp_path / place / "step-000002" for place in ("checkpoints", "tier"))
    assert manifest.digest(one) == manifest.digest(other) == state.committed_digest(str(other))
    assert manifest.differences(other, manifest.read(other)) == []
    assert [path.name for path in (tmp_path / "tier").iterdir() if "partial" in path.name] == []


def test_a_full_disk_is_named_by_the_rank_that_met_it(small_job: Job, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))  # inherited by the job
    try:
        done = small_job(tmp_path, steps=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.returncode != 0
    assert "step-000002 could not be saved: rank 0: OSError: [Errno 27] File too large" in done.stderr
    assert list(newest_first(str(tmp_path / "checkpoints"))) == []
    assert list((tmp_path / "scratch").glob("step-*")) == []


def test_rank_0_names_the_rank_that_is_silent(tmp_path: Path) -> None:
    staged = tmp_path / "step-000002.partial"
    rank_files.tell(Report(rank=0), staged)
    with pytest.raises(CheckpointError, match=r"rank 1 has not written its part of step-000002"):
        commit.gather(staged, 2, timeout_seconds=0.1)


def test_rank_0_says_what_another_rank_met(tmp_path: Path) -> None:
    staged = tmp_path / "step-000002.partial"
    rank_files.tell(Report(rank=1, error="OSError: no space left"), staged)
    with pytest.raises(
        CheckpointError, match="step-000002 could not be saved: rank 1: OSError: no space left"
    ):
        commit.gather(staged, 2, timeout_seconds=5)


def test_a_file_is_known_by_what_was_written_and_not_by_what_lies_there(tmp_path: Path) -> None:
    held = {"weights": torch.arange(100_000, dtype=torch.float32), "step": 3}
    with HashedFile(tmp_path / "state.pt") as file:
        torch.save(held, file)
    assert file.entry == entry(tmp_path / "state.pt")
    file.read_back()
    assert torch.equal(torch.load(tmp_path / "state.pt")["weights"], held["weights"])
    with (tmp_path / "state.pt").open("rb+") as damaged:
        damaged.seek(200_000)
        damaged.write(b"\xff")
    with pytest.raises(CheckpointCorrupt, match=r"state\.pt reads back otherwise"):
        file.read_back()


def test_copies_share_memory_where_the_state_did_and_are_used_again() -> None:
    memory, weight = Memory(), torch.ones(4, 4)
    tied = {"embedding": weight, "head": weight.view(4, 4), "step": torch.tensor(1)}
    first = memory._tree(tied)
    assert first["embedding"] is first["head"]
    assert first["embedding"].data_ptr() != weight.data_ptr()
    memory.fill()
    memory._buffers, memory._fresh = memory._fresh, {}
    weight.mul_(2)
    again = memory._tree(tied)
    memory.fill()
    assert again["embedding"] is first["embedding"]
    assert torch.equal(again["head"], weight)


def test_a_save_that_is_waited_for_is_the_same_checkpoint(
    small_job: Job, small_checkpoints: Path, tmp_path: Path
) -> None:
    assert small_job(tmp_path, checkpoints={"asynchronous": False}).returncode == 0
    waited, usual = (
        manifest.read(at / "step-000002") for at in (tmp_path / "checkpoints", small_checkpoints)
    )
    assert waited.tensors == usual.tensors
    saved, _ = told(tmp_path, "checkpoint")
    assert saved["seconds_stalled"] <= saved["seconds_to_save"]
    assert list((tmp_path / "scratch").glob("step-*")) == []


def test_a_job_measures_its_saves_and_chooses_how_often_to_make_them(small_job: Job, tmp_path: Path) -> None:
    done = small_job(tmp_path, steps=64, processes=2, checkpoint_every="auto", evaluate_every=64)
    assert done.returncode == 0, done.stderr
    first, second, *_, last = (one["step"] for one in told(tmp_path, "checkpoint"))
    assert (first, second, last) == (20, 40, 64)
    chosen = told(tmp_path, "interval")[0]
    assert chosen["seconds_between"] >= chosen["save_seconds"]
    assert chosen["mtbf_hours"] == pytest.approx(6332, abs=1)  # one node
    others = events.read(tmp_path / "job" / "events", "interval", rank=1)
    assert [one["steps_between"] for one in others] == [
        one["steps_between"] for one in told(tmp_path, "interval")
    ]
