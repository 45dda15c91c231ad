"""What is stored is read again, and what has rotted is found before someone needs it."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.checkpoints import manifest, pointer, reread, scrub, state
from components.errors import CheckpointCorrupt, ConfigError
from components.reliability.faulty_object_store import Faults, FaultyStore
from components.storage import Config

ROOT = Path(__file__).parent.parent
Make = Callable[..., str]


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints lie: a folder, or a bucket of a real S3 server."""
    if request.param == "local":
        return str(tmp_path / "run" / "checkpoints" / "pretrain")
    return storage.join(request.getfixturevalue("s3_root"), "run", "checkpoints", "pretrain")


def flip_a_bit(url: str) -> None:
    content = bytearray(storage.read_bytes(url))
    content[len(content) // 2] ^= 1
    storage.write_bytes(url, bytes(content))


def test_one_flipped_bit_is_found_named_and_quarantined(folder: str, make_checkpoint: Make) -> None:
    whole, rotten = make_checkpoint(folder, 2), make_checkpoint(folder, 4)
    flip_a_bit(storage.join(rotten, "deepspeed/rank-0.pt"))
    run = folder.removesuffix("/checkpoints/pretrain")
    found = {one.url: one for one in scrub.scrub(run)}
    assert {url: one.verdict for url, one in found.items()} == {whole: "whole", rotten: "rotten"}
    assert found[rotten].faults[0].startswith("deepspeed/rank-0.pt has SHA-256 ")
    known = state.read(rotten)
    assert known is not None
    assert known.state == "quarantined"
    assert "deepspeed/rank-0.pt" in str(known.reason)
    assert "found by the scrubber" in str(known.reason)
    pointed = pointer.read(folder)
    assert pointed is not None
    assert pointed.url == whole
    with pytest.raises(CheckpointCorrupt, match="2 checkpoints: 1 whole, 1 rotten, 0 unread"):
        scrub.refuse_rotten(list(found.values()))


@pytest.mark.parametrize("damage", ["cut", "gone", "extra", "manifest gone", "manifest flipped"])
def test_every_kind_of_damage_is_found(folder: str, make_checkpoint: Make, damage: str) -> None:
    url = make_checkpoint(folder, 2)
    weights, listed = storage.join(url, "model.safetensors"), storage.join(url, manifest.NAME)
    match damage:
        case "cut":
            storage.write_bytes(weights, storage.read_bytes(weights)[:-1])
        case "gone":
            storage.remove(weights)
        case "extra":
            storage.write_bytes(storage.join(url, "more.pt"), b"")
        case "manifest gone":
            storage.remove(listed)
        case _:
            flip_a_bit(listed)
    (found,) = scrub.scrub(folder)
    assert found.verdict == "rotten"
    named = {"extra": "more.pt", "cut": "model.safetensors", "gone": "model.safetensors"}
    assert named.get(damage, manifest.NAME) in found.faults[0]


def test_a_sector_that_cannot_be_read_is_rot(
    tmp_path: Path, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failing disk answers; a device that fails on demand needs more rights than tests have."""
    make_checkpoint(tmp_path, 2)
    open_read = storage.open_read

    class Failing(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    @contextmanager
    def opened(url: str) -> Iterator[Any]:
        if url.endswith("safetensors"):
            with Failing(url) as file:
                yield file
        else:
            with open_read(url) as file:
                yield file

    monkeypatch.setattr(storage, "open_read", opened)
    (found,) = scrub.scrub(str(tmp_path))
    assert found.faults == ("model.safetensors cannot be read from its device: Input/output error",)


def test_a_store_that_is_down_is_not_taken_for_rot(
    faulty_s3: FaultyStore, s3_root: str, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANCHION_STORAGE", Config(retries=0).model_dump_json())
    url = make_checkpoint(s3_root, 2)
    size = storage.size

    def then_down(at: str) -> int:
        found = size(at)
        faulty_s3.faults = Faults(error_share=1.0)
        return found

    monkeypatch.setattr(storage, "size", then_down)
    (found,) = scrub.scrub(s3_root)
    faulty_s3.faults = Faults()
    assert found.verdict == "unread"
    known = state.read(url)
    assert known is not None
    assert known.state == "validated"
    assert scrub.last_read(s3_root) == {}, "it is the first to be read next time"


def test_the_one_that_was_read_longest_ago_comes_first(tmp_path: Path, make_checkpoint: Make) -> None:
    for step in (2, 4):
        make_checkpoint(tmp_path, step)
    assert len(list(scrub.scrub(str(tmp_path)))) == 2
    make_checkpoint(tmp_path, 6)
    again = scrub.scrub(str(tmp_path))
    first = next(again)
    assert (first.url, first.before) == (str(tmp_path / "step-000006"), None)
    again.close()  # stopped after one; the next pass goes on behind it
    order = [Path(one.url).name for one in scrub.scrub(str(tmp_path))]
    assert order == ["step-000002", "step-000004", "step-000006"]


def test_what_is_gone_is_forgotten(tmp_path: Path, make_checkpoint: Make) -> None:
    old = make_checkpoint(tmp_path, 2)
    make_checkpoint(tmp_path, 4)
    list(scrub.scrub(str(tmp_path)))
    assert set(scrub.last_read(str(tmp_path))) == {"step-000002", "step-000004"}
    storage.remove(old)
    storage.remove(state.url_of(old))
    list(scrub.scrub(str(tmp_path)))
    assert set(scrub.last_read(str(tmp_path))) == {"step-000004"}


def test_quarantined_ones_and_those_on_their_way_are_left_alone(s3_root: str, make_checkpoint: Make) -> None:
    make_checkpoint(s3_root, 2, to="quarantined")
    on_its_way = make_checkpoint(s3_root, 4, to="committed")
    storage.remove(storage.join(on_its_way, manifest.NAME))  # announced, and not yet uploaded to its end
    assert list(scrub.scrub(s3_root)) == []
    known = state.read(on_its_way)
    assert known is not None
    assert known.state == "committed"


def test_one_that_is_retired_while_it_is_read_is_no_rot(
    tmp_path: Path, make_checkpoint: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_checkpoint(tmp_path, 2)
    fault = reread._fault

    def retired(at: str, *rest: Any) -> str | None:
        if at.endswith("model.safetensors"):
            state.retire(url, "a test")
            storage.remove(at)
        return fault(at, *rest)

    monkeypatch.setattr(reread, "_fault", retired)
    assert list(scrub.scrub(str(tmp_path))) == []
    known = state.read(url)
    assert known is not None
    assert known.state == "retired"


def test_reading_keeps_to_its_rate(tmp_path: Path, make_checkpoint: Make) -> None:
    make_checkpoint(tmp_path, 2)
    (fast,) = scrub.scrub(str(tmp_path))
    rate = fast.bytes / 1e6 / 0.5
    started = time.monotonic()
    (slow,) = scrub.scrub(str(tmp_path), megabytes_per_second=rate)
    assert time.monotonic() - started >= 0.5
    assert slow.bytes == fast.bytes > 30_000


def test_a_ledger_that_cannot_be_read_is_begun_anew(tmp_path: Path, make_checkpoint: Make) -> None:
    make_checkpoint(tmp_path, 2)
    (tmp_path / scrub.LEDGER).write_text("[")
    assert [one.before for one in scrub.scrub(str(tmp_path))] == [None]
    assert set(scrub.last_read(str(tmp_path))) == {"step-000002"}


def test_nothing_is_answered_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing at"):
        list(scrub.scrub(str(tmp_path / "none")))


def stanchion(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from flows.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def test_the_command_reports_and_exits_by_what_it_found(tmp_path: Path, make_checkpoint: Make) -> None:
    make_checkpoint(tmp_path, 2)
    rotten = Path(make_checkpoint(tmp_path, 4))
    assert stanchion("scrub", str(tmp_path)).returncode == 0
    (rotten / "model.safetensors").write_bytes(b"rot")
    done = stanchion("scrub", str(tmp_path), "--rate", "100")
    assert done.returncode == 1
    assert f"rotten  {rotten}  model.safetensors has 3 bytes" in done.stdout
    assert "2 checkpoints: 1 whole, 1 rotten, 0 unread" in done.stdout


def test_the_command_goes_over_them_again_and_again(tmp_path: Path, make_checkpoint: Make) -> None:
    make_checkpoint(tmp_path, 2)
    code = "from flows.cli import main; main()"
    again = [sys.executable, "-c", code, "scrub", str(tmp_path), "--every", "0.1s"]
    with subprocess.Popen(again, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        passes = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 143
    assert [line.split()[0] for line in passes] == ["whole", "1"] * 3


def test_the_scheduled_flow_fails_when_something_has_rotted(
    tmp_path: Path, make_checkpoint: Make, prefect_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.config import Profile
    from flows.scrub import scrub as flow

    monkeypatch.setenv("STANCHION_STORAGE", "{}")
    checkpoints = tmp_path / "run" / "checkpoints" / "pretrain"
    make_checkpoint(checkpoints, 2)
    rotten = make_checkpoint(checkpoints, 4)
    profile = Profile.model_validate("laptop").model_copy(update={"storage": Config(root=str(tmp_path))})
    assert [one.verdict for one in flow(profile)] == ["whole", "whole"]
    flip_a_bit(storage.join(rotten, "model.safetensors"))
    with pytest.raises(CheckpointCorrupt, match=r"rotten .*step-000004  model\.safetensors has SHA-256"):
        flow(profile)
