"""States move forward on what they were decided on, and the pointer always names the newest validated one."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from components import storage
from components.checkpoints import manifest, names, pointer, restore, state
from components.checkpoints.check import resumable
from components.errors import CheckpointCorrupt, Conflict, NotSigned, NotValidated
from components.records import Verdict

ROOT = Path(__file__).parent.parent
Make = Callable[..., str]


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints lie: a folder, or a bucket of a real S3 server."""
    if request.param == "local":
        return str(tmp_path / "checkpoints")
    return storage.join(request.getfixturevalue("s3_root"), "checkpoints")


def pointed(folder: str) -> str | None:
    found = pointer.read(folder)
    return found.checkpoint if found else None


def test_the_pointer_names_the_newest_validated_checkpoint(folder: str, make_checkpoint: Make) -> None:
    first = make_checkpoint(folder, 2, to="committed")
    assert pointer.read(folder) is None
    state.validate(first, [Verdict(gate="weights_are_finite", passed=True, reason="all are")])
    assert pointed(folder) == "step-000002"
    second = make_checkpoint(folder, 4)
    assert pointed(folder) == "step-000004"
    state.quarantine(second, "a flipped bit")
    found = pointer.read(folder)
    assert found is not None
    assert found.url == first
    assert found.target is not None
    assert (found.target.step, found.target.manifest_sha256) == (2, state.committed_digest(first))
    assert [move.why for move in found.moves] == [
        "step-000004 is quarantined: a flipped bit",
        "step-000004 has passed no gate",
        "step-000002 has passed weights_are_finite",
    ]
    state.quarantine(first, "another")
    assert pointed(folder) is None


def test_an_older_one_that_is_validated_late_does_not_move_the_pointer_back(
    folder: str, make_checkpoint: Make
) -> None:
    older = make_checkpoint(folder, 2, to="committed")
    make_checkpoint(folder, 4)
    state.validate(older, [])
    assert pointed(folder) == "step-000004"


def test_movers_at_the_same_time_end_at_the_newest(tmp_path: Path, make_checkpoint: Make) -> None:
    urls = [make_checkpoint(tmp_path, step, to="committed") for step in range(2, 18, 2)]
    threads = [threading.Thread(target=state.validate, args=(url, [])) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pointed(str(tmp_path)) == "step-000016"


def test_a_pointer_that_moved_meanwhile_is_read_again_before_it_moves(
    folder: str, make_checkpoint: Make
) -> None:
    make_checkpoint(folder, 2)
    asked = []

    def choose() -> pointer.Target:
        asked.append(pointed(folder))
        if len(asked) == 1:  # another mover is faster
            make_checkpoint(folder, 4)
        return pointer.Target(checkpoint="step-000006", step=6, manifest_sha256="0" * 64)

    assert pointer.move(folder, choose, "a test").checkpoint == "step-000006"
    assert asked == ["step-000002", "step-000004"]


def test_a_pointer_that_others_move_all_the_time_is_given_up(tmp_path: Path, make_checkpoint: Make) -> None:
    make_checkpoint(tmp_path, 2)

    def choose() -> pointer.Target:
        (tmp_path / pointer.NAME).write_text(f"{(tmp_path / pointer.NAME).read_text()} ")
        return pointer.Target(checkpoint="step-000006", step=6, manifest_sha256="0" * 64)

    with pytest.raises(Conflict, match="moved by others"):
        pointer.move(str(tmp_path), choose, "a test")


def test_a_pointer_that_cannot_be_read_is_written_anew(tmp_path: Path, make_checkpoint: Make) -> None:
    make_checkpoint(tmp_path, 2)
    (tmp_path / pointer.NAME).write_text('{"half')
    with pytest.raises(CheckpointCorrupt, match="is not a pointer"):
        pointer.read(str(tmp_path))
    assert resumable(str(tmp_path)) == str(tmp_path / "step-000002"), "resume goes by the states"
    make_checkpoint(tmp_path, 4)
    assert pointed(str(tmp_path)) == "step-000004"


def test_gates_do_not_bring_back_what_was_found_rotten_while_they_looked(
    folder: str, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scrubber writes between the gate's reading of the state and its writing."""
    url = make_checkpoint(folder, 2, to="committed")
    replace = storage.replace_bytes

    def late(at: str, content: bytes, *, expected: bytes | None) -> None:
        monkeypatch.setattr(storage, "replace_bytes", replace)
        state.quarantine(url, "a flipped bit")
        replace(at, content, expected=expected)

    monkeypatch.setattr(storage, "replace_bytes", late)
    with pytest.raises(NotValidated, match="a quarantined one never comes back"):
        state.validate(url, [])
    known = state.read(url)
    assert known is not None
    assert (known.state, known.reason) == ("quarantined", "a flipped bit")


def test_a_quarantine_keeps_its_first_reason(tmp_path: Path, make_checkpoint: Make) -> None:
    url = make_checkpoint(tmp_path, 2, to="quarantined")
    state.quarantine(url, "also too large")
    known = state.read(url)
    assert known is not None
    assert known.reason == "its loss did not reproduce"


def test_a_state_that_cannot_be_read_is_passed_over(tmp_path: Path, make_checkpoint: Make) -> None:
    good, rotten = make_checkpoint(tmp_path, 2), make_checkpoint(tmp_path, 4)
    Path(state.url_of(rotten)).write_text("{")
    assert resumable(str(tmp_path)) == good
    with pytest.raises(NotValidated, match="is not a state"):
        restore.open_checkpoint(rotten)


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path, make_checkpoint: Make) -> None:
    (tmp_path / "step-000008").mkdir()
    old = Path(make_checkpoint(tmp_path, 2))
    (tmp_path / "step-000008").rmdir()
    old.rename(tmp_path / "step-000008")
    Path(state.url_of(str(old))).rename(state.url_of(str(tmp_path / "step-000008")))
    with pytest.raises(CheckpointCorrupt, match="holds step 2"):
        restore.open_checkpoint(str(tmp_path / "step-000008"))


def test_what_is_taken_is_said_with_why_and_what_was_passed_over(
    tmp_path: Path, make_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path, 2)
    taken = make_checkpoint(tmp_path, 4)
    make_checkpoint(tmp_path, 6, to="quarantined")
    rotten = Path(make_checkpoint(tmp_path, 8))
    (rotten / "model.safetensors").write_bytes(b"rot")
    with caplog.at_level(logging.INFO):
        assert resumable(str(tmp_path)) == taken
    (said,) = [record.message for record in caplog.records if record.message.startswith("goes on from")]
    assert f"{taken} (manifest {state.committed_digest(taken)[:12]}) validated " in said
    assert "passed over: step-000008 quarantined " in said
    assert "model.safetensors has 3 bytes" in said
    assert "step-000006 quarantined" in said
    assert "its loss did not reproduce" in said
    assert "step-000002" not in said, "an older one needs no excuse"


def test_a_start_from_nothing_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert resumable(str(tmp_path / "none")) is None
    assert "starts at step 0: there is no checkpoint" in caplog.text


def test_a_store_with_old_lists_still_gives_the_one_that_is_pointed_at(
    s3_root: str, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(s3_root, 2)
    listed = storage.listing(s3_root)
    newest = make_checkpoint(s3_root, 4)
    monkeypatch.setattr(storage, "listing", lambda _: listed)
    assert next(names.newest_first(s3_root)) == newest


def test_folders_of_checkpoints_are_found_in_a_run_and_under_a_root(
    tmp_path: Path, make_checkpoint: Make
) -> None:
    expected = []
    for run, stage in (("a", "pretrain"), ("a", "rl"), ("b", "pretrain")):
        expected.append(str(tmp_path / run / "checkpoints" / stage))
        make_checkpoint(expected[-1], 2)
    assert names.folders_in(str(tmp_path)) == expected
    assert names.folders_in(str(tmp_path / "a")) == expected[:2]
    assert names.folders_in(expected[0]) == expected[:1]


def stanchion(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from flows.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_the_list_says_of_each_where_it_stands_and_why(folder: str, make_checkpoint: Make) -> None:
    make_checkpoint(folder, 2)
    make_checkpoint(folder, 4)
    make_checkpoint(folder, 6, to="quarantined")
    make_checkpoint(folder, 6, to="committed", attempt=2)
    done = stanchion("list", "checkpoints", folder)
    assert done.returncode == 0, done.stderr
    heading, columns, *lines = done.stdout.splitlines()
    assert heading == folder
    assert columns.split() == ["checkpoint", "step", "state", "loss", "size", "age", "ranks", "reason"]
    assert [line.split()[:2] for line in lines] == [
        ["step-000006-2", "6"],
        ["step-000006", "6"],
        ["->", "step-000004"],
        ["step-000002", "2"],
    ]
    assert f"not yet judged: stanchion promote {folder}/step-000006-2" in lines[0]
    assert "quarantined  4.9940  0.0 MB" in lines[1]
    assert lines[1].endswith("its loss did not reproduce")


def test_a_quarantine_by_hand_moves_the_pointer_and_says_where(folder: str, make_checkpoint: Make) -> None:
    first, second = make_checkpoint(folder, 2), make_checkpoint(folder, 4)
    done = stanchion("quarantine", second, "--reason", "trained on the wrong data")
    assert done.returncode == 0, done.stderr
    assert f"{second} is quarantined: trained on the wrong data" in done.stdout
    assert f"resume and deployment take {first}" in done.stdout
    assert stanchion("quarantine", second, "--reason", " ").returncode == 2
    assert stanchion("quarantine", second).returncode == 2
    assert "take none" in stanchion("quarantine", first, "--reason", "as well").stdout
    refused = stanchion("promote", first)
    assert refused.returncode == 1
    assert "is quarantined: as well" in refused.stderr


def test_an_older_one_is_promoted_only_when_the_newer_are_set_aside(
    tmp_path: Path, make_checkpoint: Make
) -> None:
    older, newer = make_checkpoint(tmp_path, 2, to="committed"), make_checkpoint(tmp_path, 4)
    done = stanchion("promote", older)
    assert done.returncode == 1
    assert f"`stanchion quarantine {newer} --reason WHY` first" in done.stderr


def test_a_promotion_asks_the_gates_and_a_refusal_quarantines(tmp_path: Path, make_checkpoint: Make) -> None:
    url = make_checkpoint(tmp_path, 2, to="committed")  # its weights are no safetensors file
    done = stanchion("promote", url)
    assert done.returncode == 3
    assert "weights_are_finite" in done.stderr
    known = state.read(url)
    assert known is not None
    assert known.state == "quarantined"
    assert pointer.read(str(tmp_path)) is None


@pytest.mark.slow
def test_a_real_checkpoint_that_passes_is_promoted(
    small_checkpoints: Path, tmp_path: Path, folder: str
) -> None:
    """Its data set is not on this machine, so the gates that evaluate are not asked."""
    staged = Path(shutil.copytree(small_checkpoints / "step-000004", tmp_path / "staged"))
    content = manifest.read(staged)
    manifest.seal(staged, content.model_copy(update={"shards": str(tmp_path / "away")}), content.files)
    url = storage.join(folder, "step-000004")
    state.commit(url, manifest.digest(staged))
    storage.publish_folder(staged, url, last=manifest.NAME)
    done = stanchion("promote", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass  weights_are_finite: " in done.stdout
    assert f"{pointer.url_of(folder)} names step-000004" in done.stdout
    known = state.read(url)
    assert known is not None
    assert known.state == "validated"
    assert all(verdict.passed for verdict in known.verdicts)


def test_a_key_that_came_later_signs_what_is_there(
    folder: str, make_checkpoint: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_checkpoint(folder, 2)
    assert "no key to sign with; export" in stanchion("sign", url).stderr
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_text("k" * 32)
    monkeypatch.setenv("STANCHION_CHECKPOINT_KEY_FILE", str(key))
    with pytest.raises(NotSigned):
        restore.open_checkpoint(url)
    assert "is not signed" in stanchion("list", "checkpoints", folder).stdout
    assert stanchion("sign", url).returncode == 0
    assert restore.open_checkpoint(url).manifest.step == 2
    storage.write_bytes(storage.join(url, "model.safetensors"), b"rot")
    storage.remove(storage.join(url, "manifest.json.sig"))
    refused = stanchion("sign", url)
    assert refused.returncode == 1
    assert "so it is not signed: model.safetensors has 3 bytes" in refused.stderr
    with pytest.raises(NotSigned):
        restore.open_checkpoint(url)
