"""A damaged shard is built again to the bit, from its tar or its source; otherwise nothing is replaced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.data import integrity, manifest, shards, tokenizer
from components.data.curation.checked import Checked, set_aside
from components.data.document import Document
from components.data.mending.rebuild import data_set_in, rebuild, scratch_of
from components.data.sources import mixture
from components.data.writing import dataset
from components.errors import ConfigError, DataError

CONFIG = shards.Config(documents_per_shard=6, held_out_share=0.25)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders of texts, one of which holds some that are set aside."""
    root = tmp_path_factory.mktemp("source")
    for name in ("code", "prose"):
        (root / name).mkdir()
        for number in range(30):
            (root / name / f"{number:02d}.txt").write_text(
                f"{name} says {number * number} times {number}\n" * 4
            )
    (root / "code" / "05.copy.txt").write_bytes((root / "code" / "05.txt").read_bytes())
    (root / "code" / "07.bytes.txt").write_bytes(b"\xff\xfe")
    (root / "prose" / "11.txt").write_text("short\n")
    return root


def of_source(root: Path) -> mixture.Config:
    parts = {name: {"kind": "directory", "path": str(root / name)} for name in ("code", "prose")}
    return mixture.Config.model_validate({"parts": parts})


def curated(documents: list[Document]) -> Checked:
    """Copies, flaws and short texts set aside, as curation does."""
    kept: dict[str, Document] = {}
    aside = []
    for one in documents:
        if one.flaw or one.text == "short\n":
            aside.append(set_aside(one, one.flaw or "too_short"))
        elif one.key in kept:
            aside.append(set_aside(one, "duplicate", of=one.key))
        else:
            kept[one.key] = one
    characters = sum(len(one.text) for one in documents)
    return Checked(list(kept.values()), aside, {"success": True}, digest="0" * 64, characters=characters)


def build(root: Path, url: str, scratch: Path) -> None:
    checked = curated(list(mixture.read(of_source(root))))
    learnt = tokenizer.train((one.text for one in checked.kept), tokenizer.Config(vocab_size=300))
    dataset.make_dataset(checked, learnt, url, source=of_source(root), config=CONFIG, scratch=scratch)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    url = tmp_path_factory.mktemp("whole") / "shards"
    build(source, str(url), tmp_path_factory.mktemp("scratch"))
    return url


@pytest.fixture
def url(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "shards"))


def flip(path: Path, at: int = -700) -> bytes:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.chmod(0o644)
    path.write_bytes(content)
    return bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(url: Path, split: str = "train", source: str = "code") -> list[str]:
    return [shard.name for shard in manifest.read(str(url)).shards_of(split, source)]


def test_a_damaged_tar_is_built_again_to_the_bit_and_kept_for_the_question_why(
    url: Path, whole: Path, tmp_path: Path
) -> None:
    name = names(url)[1]
    damaged = flip(url / name, 3000)
    assert rebuild(str(url), scratch=tmp_path / "scratch") == [name]
    assert contents(url) == contents(whole)
    [kept] = (tmp_path / "scratch" / "quarantine").iterdir()
    assert kept.name == f"{name}.{storage.sha256_of_bytes(damaged)[:12]}"
    assert kept.read_bytes() == damaged


def test_an_index_is_made_from_its_tar_without_the_source(
    url: Path, whole: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: Any) -> None:
        raise AssertionError("the source was read")

    monkeypatch.setattr(mixture, "read", refuse)
    name = names(url)[0]
    flip(url / name.replace(".tar", ".index.npy"), 300)
    assert rebuild(str(url), scratch=tmp_path / "scratch") == [name]
    assert contents(url) == contents(whole)


def test_what_is_missing_or_cut_is_built_again_in_every_split_and_part(
    url: Path, whole: Path, tmp_path: Path
) -> None:
    lost, cut = names(url)[0], names(url, "held_out", "prose")[0]
    (url / lost).unlink()
    (url / cut).write_bytes((url / cut).read_bytes()[:2048])
    assert rebuild(str(url), scratch=tmp_path / "scratch") == sorted([lost, cut])
    assert contents(url) == contents(whole)


def test_neighbours_that_lost_tar_and_index_are_found_by_what_nobody_else_names(
    url: Path, whole: Path, tmp_path: Path
) -> None:
    both, tar_only = names(url)[1:3], names(url, "train", "prose")[0]
    for name in both:
        flip(url / name)
        (url / name.replace(".tar", ".index.npy")).unlink()
    flip(url / tar_only)
    assert rebuild(str(url), scratch=tmp_path / "scratch") == sorted([*both, tar_only])
    assert contents(url) == contents(whole)


def test_shards_of_two_splits_without_tar_and_index_ask_for_a_new_build(url: Path, tmp_path: Path) -> None:
    for name in (names(url)[0], names(url, "held_out")[0]):
        (url / name).unlink()
        (url / name.replace(".tar", ".index.npy")).unlink()
    before = contents(url)
    with pytest.raises(DataError, match="build the whole data set again"):
        rebuild(str(url), scratch=tmp_path / "scratch")
    assert contents(url) == before


def test_only_named_shards_are_built_again(url: Path, tmp_path: Path) -> None:
    first, second = names(url)[:2]
    flip(url / first)
    flip(url / second)
    assert rebuild(str(url), [second], scratch=tmp_path / "scratch") == [second]
    assert {fault.shard for fault in integrity.faults_of(str(url))} == {first}


def test_a_whole_data_set_is_left_alone(url: Path, tmp_path: Path) -> None:
    assert rebuild(str(url), scratch=tmp_path / "scratch") == []
    assert rebuild(str(url), names(url)[:1], scratch=tmp_path / "scratch") == []


def test_a_name_that_no_shard_has_is_answered_with_one_that_is_there(url: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no shard train-9\.tar.*held_out-000000\.tar"):
        rebuild(str(url), ["train-9.tar"], scratch=tmp_path / "scratch")


@pytest.fixture
def moving(source: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A source that may change, and its data set."""
    root = Path(shutil.copytree(source, tmp_path / "moving"))
    build(root, str(tmp_path / "set"), tmp_path / "built")
    return root, tmp_path / "set"


def test_a_source_that_lost_a_document_is_refused_by_its_key_and_nothing_is_replaced(
    moving: tuple[Path, Path], tmp_path: Path
) -> None:
    root, url = moving
    name = names(url)[0]
    keys = [row["key"].decode() for row in _rows(url, name)]
    path = next(path for path in (root / "code").iterdir() if _key(path) == keys[2])
    path.write_text("something else\n")
    flip(url / name)
    before = contents(url)
    with pytest.raises(DataError, match=f"has changed: it no longer gives 1 documents .{keys[2]}"):
        rebuild(str(url), scratch=tmp_path / "scratch")
    assert contents(url) == before


def test_a_source_that_calls_a_document_otherwise_is_refused(
    moving: tuple[Path, Path], tmp_path: Path
) -> None:
    root, url = moving
    name = names(url)[0]
    key = _rows(url, name)[2]["key"].decode()
    path = next(path for path in (root / "code").iterdir() if _key(path) == key)
    path.rename(path.with_name(f"{path.stem}.moved.txt"))
    flip(url / name)
    before = contents(url)
    with pytest.raises(DataError, match="other paths or texts"):
        rebuild(str(url), scratch=tmp_path / "scratch")
    assert contents(url) == before


def test_a_damaged_tokenizer_stops_it_before_anything_is_replaced(url: Path, tmp_path: Path) -> None:
    flip(url / "tokenizer.json", 100)
    flip(url / names(url)[0])
    before = contents(url)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        rebuild(str(url), scratch=tmp_path / "scratch")
    assert contents(url) == before


def test_a_data_set_in_a_bucket_is_mended_there_and_its_cached_copy_forgotten(
    whole: Path, s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.data import cache

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"{s3_root}/shards"
    storage.publish_folder(Path(shutil.copytree(whole, tmp_path / "up")), url, last=manifest.NAME)
    shard = manifest.read(url).shards_of("train")[0]
    cached = cache.fetch(storage.join(url, shard.name), shard.sha256, shard.bytes)
    content = flip(cached)
    storage.write_bytes(storage.join(url, shard.name), content)
    assert rebuild(url, scratch=tmp_path / "scratch") == [shard.name]
    assert not cached.exists()
    assert integrity.faults_of(url) == []


def test_a_run_stands_for_its_data_set_and_scratch_lies_beside_it(whole: Path) -> None:
    assert data_set_in(str(whole)) == data_set_in(f"{whole.parent}/") == str(whole)
    assert scratch_of(str(whole)) == whole.parent / "scratch" / "rebuild"


def _rows(url: Path, name: str) -> Any:
    import numpy as np

    return np.load(url / name.replace(".tar", ".index.npy"))


def _key(path: Path) -> str:
    return storage.sha256_of_file(path)[:16]
