"""A copy of a remote shard is whole, fetched once, within the limit, and never older than its digest."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components import storage
from components.data import cache
from components.errors import ConfigError, ShardIntegrityError, StorageError
from components.reliability.faulty_object_store import Faults, FaultyStore
from components.remote import objects, retries
from components.storage import Config

ROOT = Path(__file__).parent.parent
MIB = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setenv("STANCHION_STORAGE", "{}")
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.01)
    storage.use(Config(cache=str(tmp_path / "cache"), cache_bytes=4 * MIB))
    return tmp_path / "cache"


def put(root: str, name: str, content: bytes) -> tuple[str, str, int]:
    """What a manifest knows of an object: address, digest and size."""
    url = storage.join(root, name)
    storage.write_bytes(url, content)
    return url, storage.sha256_of_bytes(content), len(content)


def files(folder: Path) -> list[str]:
    """All that lies in a cache but its locks."""
    return sorted(path.name for path in folder.glob("[0-9a-f][0-9a-f]/*"))


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A remote file system without a server."""
    return f"memory://{tmp_path.name}"


def _fetch(entry: tuple[str, str, int], gate, answers) -> None:
    gate.wait()
    answers.put(storage.sha256_of_file(cache.fetch(*entry)))


def test_of_many_processes_that_want_a_shard_one_fetches_it(
    faulty_s3: FaultyStore, s3_root: str, folder: Path
) -> None:
    entry = put(s3_root, "shard", os.urandom(MIB))
    faulty_s3.faults = Faults(slow_share=1, slow_seconds=0.2)
    before = faulty_s3.counts["GET"]
    context = multiprocessing.get_context("fork")
    gate, answers = context.Event(), context.SimpleQueue()
    children = [context.Process(target=_fetch, args=(entry, gate, answers)) for _ in range(4)]
    for child in children:
        child.start()
    gate.set()
    assert [answers.get() for _ in children] == [entry[1]] * 4
    for child in children:
        child.join()
        assert child.exitcode == 0
    answers.close()
    assert faulty_s3.counts["GET"] == before + 1
    assert files(folder) == [entry[1]]


def test_threads_wait_for_a_single_download_as_well(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, downloads = put(root, "shard", bytes(1000)), []
    download = objects.download

    def slow(*arguments) -> None:
        downloads.append(arguments)
        time.sleep(0.1)
        download(*arguments)

    monkeypatch.setattr(objects, "download", slow)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: cache.fetch(*entry), range(8)))) == 1
    assert len(downloads) == 1


def test_other_bytes_of_the_same_length_are_refused_and_not_kept(root: str, folder: Path) -> None:
    url, sha256, size = put(root, "shard", bytes(1000))
    storage.write_bytes(url, b"\1" + bytes(999))
    with pytest.raises(ShardIntegrityError, match="nothing was kept") as caught:
        cache.fetch(url, sha256, size)
    assert url in str(caught.value)
    assert caught.value.shard == "shard"
    assert files(folder) == []
    storage.write_bytes(url, bytes(1000))
    assert cache.fetch(url, sha256, size).read_bytes() == bytes(1000), "mended at its origin, it is taken"


def test_an_object_that_was_cut_is_refused_and_not_kept(root: str, folder: Path) -> None:
    url, sha256, size = put(root, "shard", bytes(1000))
    storage.write_bytes(url, bytes(400))
    with pytest.raises(StorageError, match="it was cut"):
        cache.fetch(url, sha256, size)
    assert files(folder) == []


def test_one_name_with_new_content_is_another_copy(root: str, folder: Path) -> None:
    first = put(root, "train-000000.tar", b"first")
    assert cache.fetch(*first).read_bytes() == b"first"
    second = put(root, "train-000000.tar", b"other")
    assert cache.fetch(*second).read_bytes() == b"other"
    assert files(folder) == sorted([first[1], second[1]])


def test_a_download_whose_answers_are_cut_arrives_whole(
    faulty_s3: FaultyStore, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PART_BYTES", MIB // 16)
    content = os.urandom(MIB)
    entry = put(s3_root, "shard", content)
    storage.use(storage.options().model_copy(update={"retries": 12}))
    faulty_s3.faults = Faults(cut_share=0.3, short_share=0.3)
    assert cache.fetch(*entry).read_bytes() == content
    assert faulty_s3.counts["cut"] > 0
    assert faulty_s3.counts["short"] > 0


def test_a_download_that_fails_keeps_nothing_and_the_next_one_succeeds(
    faulty_s3: FaultyStore, s3_root: str, folder: Path
) -> None:
    entry = put(s3_root, "shard", bytes(MIB))
    storage.use(storage.options().model_copy(update={"retries": 1}))
    faulty_s3.faults = Faults(cut_share=1)
    with pytest.raises(StorageError, match="shard failed 2 times"):
        cache.fetch(*entry)
    assert files(folder) == []
    faulty_s3.faults = Faults()
    assert cache.fetch(*entry).stat().st_size == MIB


def test_the_copies_used_longest_ago_make_room(root: str, folder: Path) -> None:
    entries = [put(root, str(number), bytes([number]) * MIB) for number in range(6)]
    for age, entry in zip((50, 40, 30, 20), entries, strict=False):
        os.utime(cache.fetch(*entry), (time.time() - age,) * 2)
    cache.fetch(*entries[0])  # used now: the oldest by arrival, the newest by use
    for entry in entries[4:]:
        cache.fetch(*entry)
        assert cache.used_bytes() <= storage.options().cache_bytes
    assert files(folder) == sorted(entries[number][1] for number in (0, 3, 4, 5))


def test_downloads_side_by_side_stay_within_the_limit(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries, download, seen = [put(root, str(n), bytes([n]) * MIB) for n in range(12)], objects.download, []

    def watched(*arguments) -> None:
        download(*arguments)
        with cache._lock("room"):  # while they are counted nothing goes and nothing new comes
            seen.append(cache.used_bytes())

    monkeypatch.setattr(objects, "download", watched)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda entry: cache.fetch(*entry), entries))
    assert max(seen) <= 4 * MIB
    assert len(seen) == 12


def test_an_open_copy_is_readable_after_its_eviction(root: str, folder: Path) -> None:
    first, second = put(root, "1", os.urandom(3 * MIB)), put(root, "2", bytes(3 * MIB))
    with cache.opened(*first) as file:
        assert file.read(10)
        cache.fetch(*second)
        assert files(folder) == [second[1]]
        file.seek(0)
        assert storage.sha256_of_bytes(file.read()) == first[1]


def test_a_downloader_that_is_killed_blocks_nobody_and_leaves_nothing(
    faulty_s3: FaultyStore, s3_root: str, folder: Path
) -> None:
    entry = put(s3_root, "shard", bytes(3 * MIB))
    other = put(s3_root, "other", b"\1" * 3 * MIB)
    faulty_s3.faults = Faults(slow_share=1, slow_seconds=30, methods=("GET",))
    code = "import sys; from components.data import cache; "
    code += "cache.fetch(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
    arguments = [sys.executable, "-c", code, *map(str, entry)]
    with subprocess.Popen(arguments, cwd=ROOT) as downloader:
        deadline = time.monotonic() + 60
        while faulty_s3.counts["GET"] < 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert files(folder) == [entry[1] + cache.PARTIAL]
        downloader.send_signal(signal.SIGKILL)
    faulty_s3.faults = Faults()
    assert files(folder) == [entry[1] + cache.PARTIAL], "killed, it could not tidy up"
    cache.fetch(*other)
    assert files(folder) == [other[1]], "the leftover made room for another shard"
    assert cache.fetch(*entry).stat().st_size == 3 * MIB
    assert files(folder) == [entry[1]]


def test_what_arrives_is_not_evicted(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, download = (
        put(root, "1", bytes(3 * MIB)),
        put(root, "2", b"\1" * 3 * MIB),
        objects.download,
    )
    errors = []

    def meanwhile(*arguments) -> None:
        monkeypatch.setattr(objects, "download", download)
        with pytest.raises(ConfigError, match=r"full of shards .* raise storage\.cache_bytes") as caught:
            cache.fetch(*second)
        errors.append(caught.value)
        download(*arguments)

    monkeypatch.setattr(objects, "download", meanwhile)
    assert cache.fetch(*first).read_bytes() == bytes(3 * MIB)
    assert len(errors) == 1


def test_a_copy_of_the_wrong_length_is_fetched_anew(root: str) -> None:
    entry = put(root, "shard", bytes(1000))
    cache.fetch(*entry).write_bytes(bytes(999))
    assert cache.fetch(*entry).read_bytes() == bytes(1000)


def test_a_damaged_copy_is_dropped_unless_another_has_taken_its_place(root: str, folder: Path) -> None:
    entry = put(root, "shard", bytes(1000))
    with cache.opened(*entry) as damaged:
        Path(cache.fetch(*entry)).write_bytes(b"\1" * 1000)
        cache.drop(entry[1], damaged.fileno())
        assert files(folder) == []
        assert cache.fetch(*entry).read_bytes() == bytes(1000)
        cache.drop(entry[1], damaged.fileno())
        assert files(folder) == [entry[1]], "the next process that had the old one open spares the new one"
    cache.drop(entry[1])
    assert files(folder) == []
    cache.drop(entry[1])


def test_what_is_local_is_not_copied(tmp_path: Path, folder: Path) -> None:
    shard = tmp_path / "shard"
    shard.write_bytes(b"x")
    for url in (str(shard), f"file://{shard}"):
        assert cache.fetch(url, "0" * 64, 1) == shard
        with cache.opened(url, "0" * 64, 1) as file:
            assert file.read() == b"x"
    assert not folder.exists()


def test_a_shard_larger_than_the_cache_is_an_error_that_says_so(root: str, folder: Path) -> None:
    entry = put(root, "shard", bytes(5 * MIB))
    message = rf"{5 * MIB} bytes does not fit into the cache of {4 * MIB} .* raise storage\.cache_bytes"
    with pytest.raises(ConfigError, match=message):
        cache.fetch(*entry)
    assert files(folder) == []


@pytest.mark.parametrize(
    "digest", ["", "../../../etc/passwd", "0" * 63, "0" * 64 + "/", "A" * 64, "0" * 64 + "\n"]
)
def test_a_name_that_is_no_digest_never_becomes_a_path(root: str, folder: Path, digest: str) -> None:
    with pytest.raises(ConfigError, match="is not a SHA-256 in hex"):
        cache.fetch(storage.join(root, "shard"), digest, 1)
    assert not folder.exists()
