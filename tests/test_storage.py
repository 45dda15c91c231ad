"""Every verb means the same on a disk, in memory and on S3; publishing is all or nothing."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from components import storage
from components.errors import ConfigError, StorageError
from components.storage import Config


@pytest.fixture(params=["local", "memory", "s3"])
def root(request, tmp_path) -> str:
    """A folder of this machine, one on another fsspec file system, and a bucket."""
    if request.param == "s3":
        return storage.join(request.getfixturevalue("s3_root"), "root")
    return str(tmp_path / "root") if request.param == "local" else f"memory://{tmp_path.name}"


def test_what_is_written_is_read_back(root: str) -> None:
    url = storage.join(root, "a", "b.json")
    storage.write_json(url, {"b": 1, "a": [2]})
    assert storage.read_json(url) == {"a": [2], "b": 1}
    assert storage.listing(storage.join(root, "a")) == ["b.json"]
    assert storage.exists(url)
    assert storage.exists(storage.join(root, "a"))


def test_what_is_overwritten_reads_as_the_new_content(root: str) -> None:
    url = storage.join(root, "pointer")
    for content in (b"a longer first version", b"second", b""):
        storage.write_bytes(url, content)
        assert storage.read_bytes(url) == content
        assert storage.size(url) == len(content)


def test_nothing_there_is_no_file_and_an_empty_list(root: str) -> None:
    url = storage.join(root, "nowhere")
    assert not storage.exists(url)
    assert storage.listing(url) == []
    assert storage.walk(url) == []
    for read in (storage.read_bytes, storage.size):
        with pytest.raises(FileNotFoundError):
            read(url)
    with pytest.raises(FileNotFoundError):
        storage.read_range(url, 0, 1)


def test_equal_content_is_equal_bytes(root: str) -> None:
    one, two = storage.join(root, "1.json"), storage.join(root, "2.json")
    storage.write_json(one, {"x": 1, "y": 2})
    storage.write_json(two, {"y": 2, "x": 1})
    assert storage.read_bytes(one) == storage.read_bytes(two)


def test_a_range_is_exactly_the_bytes_asked_for(root: str) -> None:
    url = storage.join(root, "range")
    storage.write_bytes(url, bytes(range(100)))
    assert storage.read_range(url, 0, 100) == bytes(range(100))
    assert storage.read_range(url, 97, 3) == bytes([97, 98, 99])
    assert storage.read_range(url, 50, 0) == b""
    with pytest.raises(ValueError, match="may not be negative"):
        storage.read_range(url, -1, 3)


@pytest.mark.parametrize("start", [90, 100, 5000])
def test_a_range_that_ends_behind_the_file_is_an_error(root: str, start: int) -> None:
    url = storage.join(root, "range")
    storage.write_bytes(url, bytes(100))
    with pytest.raises(StorageError, match="it has 100; it was cut"):
        storage.read_range(url, start, 20)


def test_a_stream_reads_and_seeks_like_a_file(root: str) -> None:
    url, content = storage.join(root, "stream"), os.urandom(300_000)
    storage.write_bytes(url, content)
    with storage.open_read(url) as file:
        assert file.read(10) == content[:10]
        file.seek(-7, os.SEEK_END)
        assert file.read() == content[-7:]
        file.seek(1000)
        assert file.read() == content[1000:]


def test_of_all_who_create_a_file_one_wins(root: str) -> None:
    url, won, lost = storage.join(root, "deep", "once"), [], []

    def create(name: bytes) -> None:
        try:
            storage.create_bytes(url, name)
        except FileExistsError as error:
            lost.append(error)
        else:
            won.append(name)

    threads = [threading.Thread(target=create, args=(b"writer %d" % number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == 7
    assert "written once only" in str(lost[0])
    assert storage.read_bytes(url) == won[0]
    assert storage.listing(storage.join(root, "deep")) == ["once"]


def test_a_file_is_published_and_removed(root: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(100_000))
    url = storage.join(root, "folder", "copy")
    storage.put_file(source, url)
    storage.write_bytes(storage.join(root, "folder", "other"), b"x")
    assert storage.size(url) == 100_000
    assert storage.fetch(url, tmp_path).read_bytes() == source.read_bytes()
    storage.remove(url)
    assert storage.walk(root) == ["folder/other"]
    storage.remove(storage.join(root, "folder"))
    storage.remove(storage.join(root, "folder"))
    assert storage.walk(root) == []


def test_a_published_folder_has_all_its_files(root: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "manifest.json").write_text("{}")
    (source / "deep" / "data").write_text("x")
    url = storage.publish_folder(source, storage.join(root, "published"), last="manifest.json")
    assert storage.listing(url) == ["deep", "manifest.json"]
    assert storage.walk(url) == ["deep/data", "manifest.json"]
    assert storage.walk(storage.join(url, "manifest.json")) == [""]
    assert (storage.fetch(url, tmp_path) / "deep" / "data").read_text() == "x"


def test_a_published_folder_never_changes(root: str, tmp_path: Path) -> None:
    for text in ("first", "second"):
        source = tmp_path / text
        source.mkdir()
        (source / "manifest.json").write_text(text)
    url = storage.publish_folder(tmp_path / "first", storage.join(root, "published"), last="manifest.json")
    with pytest.raises(FileExistsError, match="already published"):
        storage.publish_folder(tmp_path / "second", url, last="manifest.json")
    assert storage.read_text(storage.join(url, "manifest.json")) == "first"


@pytest.mark.parametrize("write", [storage.write_bytes, storage.create_bytes])
def test_a_write_that_fails_leaves_the_old_content_and_no_leftover(tmp_path, monkeypatch, write) -> None:
    storage.write_text(str(tmp_path / "file"), "old")
    target = tmp_path / ("file" if write is storage.write_bytes else "another")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(str(target), b"new")
    assert (tmp_path / "file").read_text() == "old"
    assert storage.listing(str(tmp_path)) == ["file"]


def test_a_remote_url_is_not_a_path() -> None:
    with pytest.raises(ConfigError, match="not a local path"):
        storage.local_path("s3://bucket/key")


def test_a_web_address_is_only_read() -> None:
    for write in (storage.write_bytes, storage.create_bytes):
        with pytest.raises(ConfigError, match="can only be read"):
            write("https://example.org/x", b"x")


@pytest.mark.parametrize(
    "url",
    [
        "pipe:cat shard.tar; touch PWNED",
        "pipe://touch PWNED",
        "filecache::s3://bucket/key",
        "simplecache::https://example.org/x",
        "zip://inside.txt::file:///tmp/a.zip",
        "s3://bucket/key::file:///tmp/x",
        "reference://",
        "sftp://host/x",
        "ssh://host/x",
        "data:,hello",
        "dir://x::/tmp",
        "s3:/bucket/key",
    ],
)
def test_an_address_outside_the_list_is_refused_and_nothing_runs(url: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (storage.read_bytes, storage.exists, storage.listing, storage.is_local, storage.remove):
        with pytest.raises(ConfigError, match=r"use a local path, file://, or one of s3://"):
            use(url)
    assert list(tmp_path.iterdir()) == []


def test_a_local_name_may_hold_a_colon_when_it_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage.write_text("./step:4", "x")
    assert storage.read_text(f"file://{tmp_path}/step:4") == "x"
    assert storage.listing(str(tmp_path)) == ["step:4"]


def _tell_retries(queue) -> None:
    queue.put(storage.options().retries)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_behave_as_their_parent_was_told(method: str, monkeypatch) -> None:
    monkeypatch.setenv("STANCHION_STORAGE", "{}")
    assert storage.options() == Config()
    storage.use(Config(retries=11))
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=_tell_retries, args=(queue,))
    child.start()
    assert queue.get() == 11
    child.join()
    queue.close()


def test_importing_storage_imports_no_client() -> None:
    code = "import sys, json, components.storage; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"fsspec", "s3fs", "botocore", "aiohttp", "asyncio"} & set(json.loads(done.stdout))
