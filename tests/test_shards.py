"""Shards are plain tars with an index beside them: equal documents are equal bytes, any tool reads them."""

from __future__ import annotations

import gc
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from case_studies.proofs import _data
from components.data import index, manifest, npy, shards, tar
from components.data.document import Document, document_of
from components.data.reader import Reader
from components.errors import DataError, ShardIntegrityError

CONFIG = shards.Config(held_out_share=0.2)

webdataset_leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _data.make_real(tmp_path_factory.mktemp("data") / "real")


def sample(text: str = "a text", key: str = "", tokens: int = 3) -> shards.Sample:
    document = document_of(text.encode(), "a.txt")
    document = Document(key or document.key, text, document.path, document.sha256)
    return shards.Sample(document, "train", np.arange(tokens, dtype=np.uint16))


def test_two_writes_are_equal_byte_by_byte(real: Path, tmp_path: Path) -> None:
    again = _data.make_real(tmp_path / "again")
    assert [path.name for path in _data.files_of(again)] == [path.name for path in _data.files_of(real)]
    for path in _data.files_of(real):
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_index_is_what_follows_from_its_tar(real: Path) -> None:
    for shard in manifest.read(str(real)).shards:
        with (real / shard.name).open("rb") as file:
            rows = index.of_members(tar.scan(file, shard.name), shard.name)
        assert index.to_bytes(rows) == (real / shard.index_name).read_bytes()


def test_every_place_in_the_index_is_where_tarfile_finds_the_member(real: Path) -> None:
    for shard in manifest.read(str(real)).shards:
        rows = np.load(real / shard.index_name, allow_pickle=False)
        with tarfile.open(real / shard.name) as archive:
            members = {member.name: (member.offset_data, member.size) for member in archive.getmembers()}
        found = {
            f"{row['key'].decode()}.{kind}": (int(row[kind]["start"]), int(row[kind]["bytes"]))
            for row in rows
            for kind in tar.MEMBERS
        }
        assert found == members


@webdataset_leaves_files_open
def test_webdataset_reads_the_shards_unchanged(real: Path) -> None:
    import webdataset as wds

    listed = manifest.read(str(real)).shards
    names = [str(real / shard.name) for shard in listed]
    read = {one["__key__"]: one for one in wds.WebDataset(names, shardshuffle=False).decode()}
    gc.collect()
    assert len(read) == sum(shard.samples for shard in listed)
    with Reader(str(real)) as reader:
        for shard in listed:
            for row in range(shard.samples):
                ours = reader.sample(shard, row)
                theirs = read[ours.document.key]
                assert theirs["txt"] == ours.document.text
                assert theirs["json"]["sha256"] == ours.document.sha256
                np.testing.assert_array_equal(theirs["npy"], ours.tokens)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 10240 - 3 * 512, 10240])
def test_a_tar_ends_as_tools_expect_whatever_its_size(tmp_path: Path, size: int) -> None:
    written = shards.write_shard(tmp_path / "train-000000.tar", "train", [sample("x" * size)])
    assert written.bytes % tar.RECORD == 0
    assert written.bytes == (tmp_path / "train-000000.tar").stat().st_size
    with tarfile.open(tmp_path / "train-000000.tar") as archive:
        assert [Path(name).suffix for name in archive.getnames()] == [".json", ".npy", ".txt"]


def test_a_shard_without_samples_is_whole_too(tmp_path: Path) -> None:
    written = shards.write_shard(tmp_path / "train-000000.tar", "train", [])
    assert (written.samples, written.tokens) == (0, 0)
    with (tmp_path / "train-000000.tar").open("rb") as file:
        assert list(tar.scan(file, "train-000000.tar")) == []


@pytest.mark.parametrize("key", ["doc.v1", "../up", "a/b", "", "x" * 17, "a b", "a\n", "\0"])
def test_the_writer_makes_no_member_that_its_reader_refuses(tmp_path: Path, key: str) -> None:
    with pytest.raises(DataError, match="fits into no shard"):
        tar.header(f"{key}.txt".encode(), 1)


@pytest.mark.parametrize("dtype", [*index.TOKENS, index.SAMPLE], ids=["16 bit", "32 bit", "index"])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 1000, 99_999])
def test_arrays_are_the_bytes_that_numpy_saves(dtype: np.dtype, count: int) -> None:
    array, file = np.zeros(count, dtype), io.BytesIO()
    np.save(file, array)
    assert npy.to_bytes(array) == file.getvalue()
    np.testing.assert_array_equal(npy.from_bytes(file.getvalue(), *index.TOKENS, index.SAMPLE), array)


def test_tokens_and_facts_of_a_sample_are_those_of_its_document(real: Path) -> None:
    from components.data import tokenizer

    learnt = tokenizer.load(real)
    with Reader(str(real)) as reader:
        shard = reader.manifest.shards[0]
        for row in range(shard.samples):
            one = reader.sample(shard, row)
            assert learnt.decode(one.tokens[:-1].tolist()) == one.document.text
            assert one.split == shard.split
            facts = json.loads(reader.content(shard, row, "json"))
            assert facts["sha256"].startswith(one.document.key)


def test_a_document_keeps_its_split_when_others_join() -> None:
    documents = [document_of(f"text {i}".encode(), "a") for i in range(2000)]
    of_all = [shards.split_of(one, CONFIG) for one in documents]
    assert [shards.split_of(one, CONFIG) for one in documents[:5]] == of_all[:5]
    assert of_all.count("held_out") / 2000 == pytest.approx(CONFIG.held_out_share, abs=0.03)


def test_a_sample_twice_in_a_shard_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-000000.tar"
    shards.write_shard(path, "train", [sample("one"), sample("two"), sample("one")])
    with path.open("rb") as file, pytest.raises(ShardIntegrityError, match="twice") as caught:
        index.of_members(tar.scan(file, path.name), path.name)
    assert caught.value.key == sample("one").document.key
