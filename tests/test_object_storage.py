"""A store that is slow, failing, cutting or forgetful costs time or a clear error, never data."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.errors import ConfigError, Conflict, StorageError
from components.reliability.faulty_object_store import Faults, FaultyStore
from components.remote import filesystems, hedging, objects, retries, s3
from components.storage import Config

ROOT = Path(__file__).parent.parent
SMALL_PART_BYTES = 5 << 20
"""The least that S3 takes as one part of several."""


@pytest.fixture(autouse=True)
def default_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test tells storage is forgotten after it."""
    monkeypatch.setenv("STANCHION_STORAGE", "{}")
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.01)


def budget() -> retries.Budget:
    """The retry budget of this process."""
    return filesystems.process().budget


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("errors", Faults(error_share=0.1)),
        ("errors", Faults(error_share=0.1, error_status=500)),
        ("errors", Faults(error_share=0.1, error_status=429)),
        ("resets", Faults(reset_share=0.1)),
        ("lost_answers", Faults(lost_answer_share=0.1)),
        ("cut", Faults(cut_share=0.3)),
        ("short", Faults(short_share=0.3)),
    ],
    ids=["503", "500", "429", "resets", "lost-answers", "cut-bodies", "short-bodies"],
)
def test_a_storm_passes_within_the_budget(
    kind: str, faults: Faults, faulty_s3: FaultyStore, s3_root: str
) -> None:
    storage.use(Config(retries=12))
    faulty_s3.faults = faults

    def come_and_go(number: int) -> None:
        url, content = storage.join(s3_root, f"{number:02d}"), os.urandom(1000)
        storage.create_bytes(url, content)
        assert storage.read_bytes(url) == content
        assert storage.read_range(url, 100, 700) == content[100:800]
        assert storage.exists(url)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(24)))
    struck = faulty_s3.counts[kind]
    assert struck > 3
    assert 0 < budget().repetitions <= struck
    assert budget().repetitions <= budget().reserve + budget().share * budget().requests


def test_an_outage_ends_in_an_error_that_says_what_was_tried(faulty_s3: FaultyStore, s3_root: str) -> None:
    url = storage.join(s3_root, "x")
    faulty_s3.faults = Faults(error_share=1, error_status=500)
    with pytest.raises(StorageError, match=r"x failed 6 times, last with .*raise storage\.retries") as caught:
        storage.read_range(url, 0, 10)
    assert caught.value.url == url
    assert caught.value.attempts == 6
    assert faulty_s3.counts["errors"] == 6
    storage.use(Config(retries=0))
    for ask in (storage.exists, storage.listing, storage.walk, storage.size):
        with pytest.raises(StorageError):  # an outage is not an empty folder
            ask(url)


def test_an_outage_is_not_fed(faulty_s3: FaultyStore, s3_root: str) -> None:
    faulty_s3.faults = Faults(error_share=1, error_status=500)
    calls = 50
    for number in range(calls):
        with pytest.raises(StorageError) as caught:
            storage.read_range(storage.join(s3_root, str(number)), 0, 10)
    assert "retry budget" in str(caught.value)
    assert faulty_s3.counts["errors"] <= calls + budget().reserve + budget().share * calls


def test_what_is_true_is_not_asked_twice(faulty_s3: FaultyStore, s3_root: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read_range(storage.join(s3_root, "nowhere"), 0, 10)
    assert faulty_s3.counts["GET"] == 1
    faulty_s3.faults = Faults(error_share=1, error_status=403)
    with pytest.raises(PermissionError, match=f"write {s3_root}/x is not allowed") as caught:
        storage.write_bytes(storage.join(s3_root, "x"), b"x")
    assert isinstance(caught.value, StorageError)
    assert faulty_s3.counts["PUT"] == 1
    assert budget().repetitions == 0


def test_a_short_answer_is_never_taken_for_the_whole(faulty_s3: FaultyStore, s3_root: str) -> None:
    url = storage.join(s3_root, "x")
    storage.write_bytes(url, bytes(1000))
    faulty_s3.faults = Faults(short_share=1)
    for read in (storage.read_bytes, lambda url: storage.read_range(url, 0, 1000)):
        with pytest.raises(StorageError, match="Short: 500 bytes came"):
            read(url)


def test_a_create_whose_answer_was_lost_knows_its_own_object(faulty_s3: FaultyStore, s3_root: str) -> None:
    storage.use(Config(retries=20))
    storage.create_bytes(storage.join(s3_root, "first"), b"the probe is over")
    faulty_s3.faults = Faults(lost_answer_share=0.5, methods=("PUT",))
    for number in range(12):
        storage.create_bytes(storage.join(s3_root, str(number)), b"same for all")
    assert faulty_s3.counts["lost_answers"] > 3
    with pytest.raises(FileExistsError):
        storage.create_bytes(storage.join(s3_root, "0"), b"same for all")


def test_a_store_that_ignores_conditions_is_found_out(faulty_s3: FaultyStore, s3_root: str, caplog) -> None:
    faulty_s3.faults = Faults(ignores_conditions=True)
    for name in ("one", "two"):
        storage.create_bytes(storage.join(s3_root, name), b"mine")
        with pytest.raises(FileExistsError):
            storage.create_bytes(storage.join(s3_root, name), b"theirs")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ignores If-None-Match" in caplog.text
    assert storage.walk(s3_root) == ["one", "two"]
    assert storage.read_bytes(storage.join(s3_root, "one")) == b"mine"


def test_old_lists_hide_nothing_from_who_reads_by_name(
    faulty_s3: FaultyStore, s3_root: str, tmp_path: Path
) -> None:
    url = storage.join(s3_root, "set")
    storage.write_bytes(storage.join(url, "old"), b"x")
    assert storage.listing(url) == ["old"]
    storage.write_bytes(storage.join(url, "new"), b"x")
    assert storage.listing(url) == ["new", "old"], "a list is never kept on our side"
    faulty_s3.faults = Faults(stale_lists=True)
    source = tmp_path / "source"
    source.mkdir()
    for name in ("shard.tar", "manifest.json"):
        (source / name).write_text(name)
    storage.publish_folder(source, url, last="manifest.json")
    assert storage.listing(url) == ["old"]
    assert faulty_s3.counts["stale"] > 0
    for name in ("shard.tar", "manifest.json"):
        assert storage.read_text(storage.join(url, name)) == name


def test_of_two_publishers_at_once_one_fails(faulty_s3: FaultyStore, s3_root: str, tmp_path: Path) -> None:
    faulty_s3.faults = Faults(slow_share=1, slow_seconds=0.1, methods=("PUT",))
    url = storage.join(s3_root, "set")

    def publish(number: int) -> str:
        source = tmp_path / str(number)
        source.mkdir()
        (source / "manifest.json").write_text(str(number))
        try:
            return storage.publish_folder(source, url, last="manifest.json")
        except FileExistsError:
            return "lost"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(publish, range(2))) == ["lost", url]


def test_an_upload_that_fails_leaves_no_object_and_no_parts(
    faulty_s3: FaultyStore, s3_root: str, tmp_path: Path, monkeypatch
) -> None:
    source, url = tmp_path / "large", storage.join(s3_root, "large")
    source.write_bytes(bytes(2 * SMALL_PART_BYTES + 1))
    storage.use(Config(retries=0))
    monkeypatch.setattr(s3, "PART_BYTES", SMALL_PART_BYTES)
    faulty_s3.faults = Faults(error_share=1, methods=("PUT",))
    with pytest.raises(StorageError, match="upload part"):
        storage.put_file(source, url)
    faulty_s3.faults = Faults()
    assert not storage.exists(url)
    filesystem, path = filesystems.filesystem(url)
    assert not filesystem.call_s3("list_multipart_uploads", Bucket=path.split("/")[0]).get("Uploads")


def test_a_writer_that_is_killed_leaves_no_object(
    faulty_s3: FaultyStore, s3_root: str, tmp_path: Path
) -> None:
    source, url = tmp_path / "large", storage.join(s3_root, "large")
    source.write_bytes(bytes(2 * SMALL_PART_BYTES + 1))
    faulty_s3.faults = Faults(slow_share=1, slow_seconds=0.5, methods=("PUT", "POST"))
    code = "import sys, pathlib; from components import storage; storage.objects.s3.PART_BYTES = "
    code += f"{SMALL_PART_BYTES}; storage.put_file(pathlib.Path(sys.argv[1]), sys.argv[2])"
    with subprocess.Popen([sys.executable, "-c", code, str(source), url], cwd=ROOT) as writer:
        deadline = time.monotonic() + 60
        while faulty_s3.counts["PUT"] < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        writer.send_signal(signal.SIGKILL)
    assert faulty_s3.counts["PUT"] >= 2
    faulty_s3.faults = Faults()
    time.sleep(0.7)  # what was on its way has arrived
    assert not storage.exists(url)


def test_a_large_file_arrives_whole_in_a_storm(
    faulty_s3: FaultyStore, s3_root: str, tmp_path: Path, monkeypatch
) -> None:
    source, url = tmp_path / "large", storage.join(s3_root, "large")
    source.write_bytes(os.urandom(3 * SMALL_PART_BYTES + 1))
    storage.use(Config(retries=12))
    monkeypatch.setattr(s3, "PART_BYTES", SMALL_PART_BYTES)
    monkeypatch.setattr(objects, "PART_BYTES", 1 << 20)
    faulty_s3.faults = Faults(error_share=0.1, lost_answer_share=0.1, cut_share=0.1, short_share=0.1)
    storage.put_file(source, url)
    assert storage.sha256_of_file(storage.fetch(url, tmp_path)) == storage.sha256_of_file(source)
    assert budget().repetitions > 0


def _read(url: str, queue) -> None:
    queue.put(storage.read_bytes(url) + storage.read_range(url, 0, 1))


def test_a_forked_child_reads_after_its_parent_has(s3_root: str) -> None:
    url = storage.join(s3_root, "x")
    storage.write_bytes(url, b"content")
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=_read, args=(url, queue)) for _ in range(2)]
    for child in children:
        child.start()
    assert [queue.get() for _ in children] == [b"contentc"] * 2
    for child in children:
        child.join(10)
        assert child.exitcode == 0
    queue.close()
    assert storage.read_bytes(url) == b"content", "the parent's client still works"


def test_late_reads_are_overtaken_and_duplicate_bytes_stay_under_their_share(
    faulty_s3: FaultyStore, s3_root: str
) -> None:
    url = storage.join(s3_root, "x")
    storage.write_bytes(url, bytes(4096))
    storage.use(Config(hedge_after_seconds=0.15))
    for _ in range(100):
        storage.read_range(url, 0, 4096)
    faulty_s3.faults = Faults(slow_share=0.02, slow_seconds=1.0)
    started = time.monotonic()
    for _ in range(150):
        assert len(storage.read_range(url, 0, 4096)) == 4096
    seconds = time.monotonic() - started
    report = filesystems.process().hedger.report()
    late = faulty_s3.counts["slow"]
    assert late >= 2
    assert report["won"] >= late - 1  # a second request may be late as well
    assert report["duplicate_bytes"] == report["hedges"] * 4096
    assert report["duplicate_bytes"] <= 0.05 * report["bytes"]
    assert report["bytes"] == 250 * 4096
    assert seconds < late * 1.0 + 150 * 0.05, "waiting for every late answer would take longer"


def test_a_share_of_nothing_turns_second_requests_off(faulty_s3: FaultyStore, s3_root: str) -> None:
    url = storage.join(s3_root, "x")
    storage.write_bytes(url, bytes(100))
    storage.use(Config(hedge_after_seconds=0.01, hedge_share=0))
    faulty_s3.faults = Faults(slow_share=1, slow_seconds=0.1)
    for _ in range(3):
        storage.read_range(url, 0, 100)
    report = filesystems.process().hedger.report()
    assert (report["hedges"], report["denied"]) == (0, 3)
    assert faulty_s3.counts["GET"] == 3


def test_lateness_is_learnt_from_answers_of_that_size(s3_root: str) -> None:
    url = storage.join(s3_root, "x")
    storage.write_bytes(url, bytes(5000))
    hedger = filesystems.process().hedger
    assert hedger.delay(5000) is None
    for _ in range(hedging.ENOUGH):
        storage.read_range(url, 0, 5000)
    delay = hedger.delay(5000)
    assert delay is not None
    assert hedging.SHORTEST_DELAY_SECONDS <= delay < 5
    assert hedger.delay(50) is None


def test_a_store_that_never_answers_is_given_up(faulty_s3: FaultyStore, s3_root: str) -> None:
    storage.use(Config(retries=1, timeout_seconds=0.3))
    faulty_s3.faults = Faults(slow_share=1, slow_seconds=5)
    started = time.monotonic()
    for ask in (storage.exists, lambda url: storage.read_range(url, 0, 10)):
        with pytest.raises(StorageError, match="failed 2 times"):
            ask(storage.join(s3_root, "x"))
    assert time.monotonic() - started < 5


def test_without_credentials_the_error_says_how_to_give_them(
    s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    filesystems.forget()
    request.addfinalizer(filesystems.forget)
    url = storage.join(s3_root, "x")
    uses = (storage.exists, storage.walk, storage.read_bytes, lambda url: storage.read_range(url, 0, 1))
    for use in (*uses, lambda url: storage.create_bytes(url, b"x")):
        with pytest.raises(ConfigError, match="export AWS_ACCESS_KEY_ID"):
            use(url)


def test_a_bucket_that_is_not_there_is_called_that(s3_root: str, tmp_path: Path) -> None:
    url, source = "s3://no-such-bucket/x", tmp_path / "source"
    source.write_bytes(b"x")
    for write in (storage.write_bytes, storage.create_bytes, lambda url, _: storage.put_file(source, url)):
        with pytest.raises(ConfigError, match=f"there is no bucket for {url}"):
            write(url, b"x")


def test_the_profile_may_name_the_endpoint(s3_root: str, s3_server: str, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    storage.use(Config(endpoint_url=s3_server))
    storage.write_bytes(storage.join(s3_root, "x"), b"x")
    assert storage.listing(s3_root) == ["x"]


def test_of_two_who_replace_what_they_read_one_is_told(s3_root: str, tmp_path: Path) -> None:
    for url in (storage.join(s3_root, "pointer"), str(tmp_path / "pointer")):
        storage.replace_bytes(url, b"first", expected=None)
        with pytest.raises(Conflict, match="meanwhile; read it again"):
            storage.replace_bytes(url, b"mine", expected=None)
        storage.replace_bytes(url, b"second", expected=b"first")
        with pytest.raises(Conflict, match="meanwhile; read it again"):
            storage.replace_bytes(url, b"mine", expected=b"first")
        assert storage.read_bytes(url) == b"second"
        storage.remove(url)
        with pytest.raises(Conflict):
            storage.replace_bytes(url, b"mine", expected=b"second")


def test_a_replacement_is_conditional_on_the_version_that_was_compared(
    s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer comes between the comparison and the put."""
    url = storage.join(s3_root, "pointer")
    storage.write_bytes(url, b"first")
    put = s3.replace

    def late(files: Any, path: str, content: bytes, at: str, version: str) -> None:
        storage.write_bytes(url, b"theirs")
        put(files, path, content, at, version)

    monkeypatch.setattr(s3, "replace", late)
    with pytest.raises(Conflict):
        storage.replace_bytes(url, b"mine", expected=b"first")
    assert storage.read_bytes(url) == b"theirs"


def test_a_replacement_whose_answer_was_lost_knows_its_own_object(
    faulty_s3: FaultyStore, s3_root: str
) -> None:
    storage.use(Config(retries=20))
    urls = [storage.join(s3_root, str(number)) for number in range(12)]
    for url in urls:
        storage.write_bytes(url, b"first")
    storage.replace_bytes(urls[0], b"the probe is over", expected=b"first")
    faulty_s3.faults = Faults(lost_answer_share=0.5, methods=("PUT",))
    for url in urls[1:]:
        storage.replace_bytes(url, b"second", expected=b"first")
    assert faulty_s3.counts["lost_answers"] > 3


def test_a_store_that_ignores_versions_is_found_out(faulty_s3: FaultyStore, s3_root: str, caplog) -> None:
    faulty_s3.faults = Faults(ignores_conditions=True)
    url = storage.join(s3_root, "pointer")
    storage.write_bytes(url, b"first")
    storage.replace_bytes(url, b"second", expected=b"first")
    with pytest.raises(Conflict):
        storage.replace_bytes(url, b"third", expected=b"first")
    assert "ignores If-Match" in caplog.text
    assert storage.read_bytes(url) == b"second"
