"""With a key, only what was signed with it is opened, and nothing else is read of what is not."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components import storage
from components.checkpoints import manifest, reread, restore, sign, state
from components.checkpoints.check import decide, default_gates, resumable
from components.checkpoints.scrub import scrub
from components.config import Profile, configure, run_folder
from components.errors import CheckpointCorrupt, ConfigError, NotSigned
from components.jobs import Job
from components.launchers import kubernetes, slurm

Make = Callable[..., str]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test does to the environment ends with it."""
    monkeypatch.setenv(sign.VARIABLE, "")


@pytest.fixture
def make_key(tmp_path: Path) -> Callable[[str], Path]:
    """A file with a key that only we can read."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.touch(mode=0o600)
        path.write_text(os.urandom(32).hex() + "\n")
        return path

    return make


@pytest.fixture
def key(make_key: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key, configured."""
    path = make_key("key")
    monkeypatch.setenv(sign.VARIABLE, str(path))
    return path


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints lie: a folder, or a bucket of a real S3 server."""
    if request.param == "local":
        return str(tmp_path / "checkpoints")
    return storage.join(request.getfixturevalue("s3_root"), "checkpoints")


def test_a_signed_checkpoint_opens_with_its_key_and_without_any(
    folder: str, key: Path, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_checkpoint(folder, 2)
    assert restore.open_checkpoint(url).manifest.step == 2
    assert reread.faults(url) == []
    assert decide(url, default_gates("files_match_manifest"))
    monkeypatch.delenv(sign.VARIABLE)
    assert restore.open_checkpoint(url).manifest.step == 2
    assert reread.faults(url) == []


def test_an_unsigned_one_is_refused_before_anything_else_of_it_is_read(
    folder: str, make_checkpoint: Make, make_key: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_checkpoint(folder, 2)
    monkeypatch.setenv(sign.VARIABLE, str(make_key("key")))
    read = []
    read_bytes = storage.read_bytes
    monkeypatch.setattr(storage, "read_bytes", lambda at: (read.append(at), read_bytes(at))[1])
    monkeypatch.setattr(storage, "fetch", lambda *_: pytest.fail("it was copied"))
    for use in (restore.open_checkpoint, manifest.read_at, reread.faults):
        with pytest.raises(NotSigned, match=r"is not signed: .*stanchion sign"):
            use(url)
    with pytest.raises(NotSigned):
        decide(url, default_gates("files_match_manifest"))
    assert {at.rpartition("/")[2] for at in read} == {"step-000002.state.json", "manifest.json"}


def test_another_key_is_refused_and_quarantines_nothing(
    tmp_path: Path,
    key: Path,
    make_checkpoint: Make,
    make_key: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "checkpoints"
    url, unjudged = make_checkpoint(folder, 2), make_checkpoint(folder, 4, to="committed")
    monkeypatch.setenv(sign.VARIABLE, str(make_key("another")))
    with pytest.raises(NotSigned, match="another key"):
        resumable(str(folder))
    with pytest.raises(NotSigned, match="another key"):
        restore.newest_validated(str(folder))
    assert [done.verdict for done in scrub(str(folder))] == ["unread", "unread"]
    assert [known.state for one in (url, unjudged) if (known := state.read(one))] == [
        "validated",
        "committed",
    ]


def test_a_manifest_that_was_changed_is_refused_even_when_state_and_files_fit(
    tmp_path: Path, key: Path, make_checkpoint: Make
) -> None:
    """Someone who can write everywhere but has no key puts in a pickle of his own, all digests right."""
    folder = Path(make_checkpoint(tmp_path / "checkpoints", 2))
    pickle = folder / "deepspeed" / "rank-0.pt"
    pickle.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    content = json.loads((folder / manifest.NAME).read_text())
    content["files"]["deepspeed/rank-0.pt"] = {
        "sha256": storage.sha256_of_file(pickle),
        "bytes": pickle.stat().st_size,
    }
    (folder / manifest.NAME).write_text(json.dumps(content))
    state.commit(str(folder), manifest.digest(folder))
    state.validate(str(folder), [])
    with pytest.raises(CheckpointCorrupt, match="not what our key signed"):
        restore.open_checkpoint(str(folder))


def test_a_signature_is_of_one_checkpoint_only(tmp_path: Path, key: Path, make_checkpoint: Make) -> None:
    folder = tmp_path / "checkpoints"
    first, second = Path(make_checkpoint(folder, 2)), Path(make_checkpoint(folder, 4))
    shutil.copyfile(first / manifest.SIGNATURE, second / manifest.SIGNATURE)
    with pytest.raises(CheckpointCorrupt, match="not what our key signed"):
        restore.open_checkpoint(str(second))


def test_a_whole_signed_checkpoint_does_not_pass_for_a_later_step(
    tmp_path: Path, key: Path, make_checkpoint: Make
) -> None:
    folder = tmp_path / "checkpoints"
    first = make_checkpoint(folder, 2)
    shutil.copytree(first, folder / "step-000008")
    shutil.copyfile(state.url_of(first), state.url_of(str(folder / "step-000008")))
    with pytest.raises(CheckpointCorrupt, match="holds step 2"):
        restore.open_checkpoint(str(folder / "step-000008"))


def test_a_flipped_bit_in_the_signature_is_refused(tmp_path: Path, key: Path, make_checkpoint: Make) -> None:
    path = Path(make_checkpoint(tmp_path / "checkpoints", 2)) / manifest.SIGNATURE
    content = path.read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises((CheckpointCorrupt, NotSigned)):
            manifest.read(path.parent)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused(key: Path, mode: int) -> None:
    key.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o} .*chmod 600"):
        sign.signature(b"")


def test_a_key_that_is_missing_short_or_no_file_is_refused(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key.write_text("secret")
    with pytest.raises(ConfigError, match="has 6 bytes, at least 32"):
        sign.signature(b"")
    key.unlink()
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.* openssl rand"):
        sign.signature(b"")
    monkeypatch.setenv(sign.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="Is a directory"):
        sign.signature(b"")


def test_the_profile_names_the_key_and_every_rank_is_told_where_it_is(
    tmp_path: Path, make_key: Callable[[str], Path]
) -> None:
    path = make_key("named")
    run, profile = configure("laptop", [f"profile.secrets.checkpoint_key_file={path}"])
    run_folder(run, profile)
    job = Job("pretrain", "x.y", {}, tmp_path / "run" / "scratch" / "job", 8)
    for launcher in (slurm, kubernetes):
        rendered = launcher.render(job, launcher.Config(processes_per_node=4))
        assert sign.VARIABLE in rendered
        assert str(path) in rendered


def test_a_profile_without_a_readable_key_stops_before_anything_runs(tmp_path: Path) -> None:
    run, profile = configure("laptop", [f"profile.secrets.checkpoint_key_file={tmp_path / 'none'}"])
    with pytest.raises(ConfigError, match="cannot be read"):
        run_folder(run, profile)


def test_the_key_is_in_no_log_no_settings_and_no_message(
    tmp_path: Path, key: Path, make_checkpoint: Make, caplog: pytest.LogCaptureFixture
) -> None:
    secret = key.read_text().strip()
    with caplog.at_level(logging.DEBUG):
        url = make_checkpoint(tmp_path / "checkpoints", 2)
        (Path(url) / manifest.SIGNATURE).write_text("hmac-sha256 0 0\n")
        with pytest.raises(NotSigned) as refused:
            restore.open_checkpoint(url)
    profile = Profile.model_validate("laptop").model_copy(
        update={"secrets": sign.Secrets(checkpoint_key_file=str(key))}
    )
    written = [path.read_text() for path in Path(url).glob("manifest.json*")]
    for said in (caplog.text, str(refused.value), profile.model_dump_json(), *written):
        assert secret not in said


def test_another_process_signs_with_the_key_that_it_inherits(
    tmp_path: Path, key: Path, make_checkpoint: Make
) -> None:
    code = (
        "from components.checkpoints import sign; import sys; sys.stdout.buffer.write(sign.signature(b'x'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, cwd=Path(__file__).parent.parent, check=True
    )
    assert done.stdout == sign.signature(b"x")
