"""Publishing is all or nothing, locally and on another file system."""

from __future__ import annotations

import os

import pytest

from components import storage
from components.errors import ConfigError


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path) -> str:
    """A folder of this machine, and one on an fsspec file system."""
    return str(tmp_path / "root") if request.param == "local" else f"memory://{tmp_path.name}"


def test_what_is_written_is_read_back(root: str) -> None:
    url = storage.join(root, "a", "b.json")
    storage.write_json(url, {"b": 1, "a": [2]})
    assert storage.read_json(url) == {"a": [2], "b": 1}
    assert storage.listing(storage.join(root, "a")) == ["b.json"]
    assert storage.exists(url)


def test_a_folder_that_is_not_there_lists_as_empty(root: str) -> None:
    assert storage.listing(storage.join(root, "nowhere")) == []


def test_equal_content_is_equal_bytes(root: str) -> None:
    one, two = storage.join(root, "1.json"), storage.join(root, "2.json")
    storage.write_json(one, {"x": 1, "y": 2})
    storage.write_json(two, {"y": 2, "x": 1})
    assert storage.read_bytes(one) == storage.read_bytes(two)


def test_a_published_folder_has_all_its_files(root: str, tmp_path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "manifest.json").write_text("{}")
    (source / "deep" / "data").write_text("x")
    url = storage.publish_folder(source, storage.join(root, "published"), last="manifest.json")
    assert storage.listing(url) == ["deep", "manifest.json"]
    assert (storage.fetch(url) / "deep" / "data").read_text() == "x"


def test_a_published_folder_never_changes(tmp_path) -> None:
    for _ in range(2):
        (tmp_path / "source").mkdir(exist_ok=True)
    storage.publish_folder(tmp_path / "source", str(tmp_path / "published"))
    (tmp_path / "source").mkdir()
    with pytest.raises(FileExistsError, match="already published"):
        storage.publish_folder(tmp_path / "source", str(tmp_path / "published"))


def test_a_write_that_fails_leaves_the_old_content_and_no_leftover(tmp_path, monkeypatch) -> None:
    url = str(tmp_path / "file")
    storage.write_text(url, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        storage.write_text(url, "new")
    assert (tmp_path / "file").read_text() == "old"
    assert storage.listing(str(tmp_path)) == ["file"]


def test_a_remote_url_is_not_a_path() -> None:
    with pytest.raises(ConfigError, match="not a local path"):
        storage.local_path("s3://bucket/key")
