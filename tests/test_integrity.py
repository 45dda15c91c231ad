"""A damaged file is refused by whoever checks the data set, and by whoever reads the damaged part."""

from __future__ import annotations

import gc
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from case_studies.proofs import _data, damage
from components import storage
from components.data import index, manifest, stream
from components.data.integrity import check_dataset, faults_of
from components.data.packing import Config
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.shards import Sample, write_shard
from components.data.stream import TokenStream
from components.errors import DataError, ShardIntegrityError

SHARD = "train-000002.tar"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _data.make(tmp_path_factory.mktemp("data") / "whole", _data.UNEVEN)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def sequences(folder: Path, **settings: str) -> None:
    with Reader(str(folder), **settings) as reader:
        data = TokenStream(reader, "train", sequence_length=16, batch_size=2, seed=0)
        for step in range(-(-data.num_sequences // 2)):
            data.batch(step)


def texts(folder: Path) -> None:
    with Reader(str(folder)) as reader:
        data = SampleStream(reader, "train")
        list(data.read(0, len(data)))


def documents(folder: Path) -> None:
    list(stream.documents(str(folder), "train"))


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def cut_at_a_member(path: Path) -> None:
    with tarfile.open(path) as archive:
        middle = archive.getmembers()[6].offset
    path.write_bytes(path.read_bytes()[:middle])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut at a member boundary": cut_at_a_member,
    "cut in a member": lambda path: path.write_bytes(path.read_bytes()[:-700]),
    "cut by a byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("read", [check_dataset, sequences, texts, documents], ids=lambda one: one.__name__)
@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
def test_a_shard_of_another_length_is_named_by_whoever_reads_it(copy: Path, harm, read) -> None:
    harm(copy / SHARD)
    with pytest.raises(ShardIntegrityError, match=r"train-000002\.tar") as caught:
        read(str(copy))
    assert caught.value.shard == SHARD


@pytest.mark.parametrize("read", [sequences, texts, documents], ids=lambda one: one.__name__)
def test_a_flipped_bit_is_named_with_shard_key_and_offset(copy: Path, read) -> None:
    kind = "txt" if read is texts else "npy"
    with Reader(str(copy)) as reader:
        [shard] = [one for one in reader.manifest.shards if one.name == SHARD]
        place, key = int(reader.index(shard)[3][kind]["start"]), reader.key(shard, 3)
    flip(copy / SHARD, place + 70)
    with pytest.raises(ShardIntegrityError, match="stanchion check") as caught:
        read(copy)
    assert (caught.value.shard, caught.value.key, caught.value.offset) == (SHARD, key, place)
    [fault] = faults_of(str(copy))
    assert (fault.shard, fault.key, fault.offset) == (SHARD, key, place)


def test_what_is_read_before_and_beside_a_flipped_bit_is_whole(whole: Path, copy: Path) -> None:
    with Reader(str(copy)) as reader:
        shard = reader.manifest.shards[2]
        flip(copy / SHARD, int(reader.index(shard)[3]["npy"]["start"]) + 130)
    with Reader(str(copy)) as reader, Reader(str(whole)) as good:
        for row in (0, 1, 2, 4, 8):
            assert reader.sample(shard, row).document == good.sample(shard, row).document
        assert reader.content(shard, 3, "txt") == good.content(shard, 3, "txt")


def test_sixty_random_damages_are_refused_or_harm_nothing_that_is_read() -> None:
    found = damage.prove(seed=11, count=60)
    assert found["holds"], found["outcomes"]
    assert sum(sum(row.values()) for name, row in found["outcomes"].items() if name.endswith(": check")) == 60


def test_the_proof_of_damage_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the comparison of members switched off it sees other data."""
    trial = damage.Trial(_data.make_real(tmp_path / "real"))
    with Reader(str(trial.folder)) as reader:
        shard = reader.manifest.shards[0]
        place = int(reader.index(shard)[2]["npy"]["start"]) + 140
    content = bytearray(trial.whole[shard.name])
    content[place] ^= 1
    (trial.folder / shard.name).write_bytes(content)
    harmed = damage.Damage(shard.name, "tar", bytes(content))
    trial._judge(harmed)
    assert trial.found["tar: sequences"] == {"refused": 1}
    monkeypatch.setattr(Reader, "content", lambda self, shard, row, kind: _unchecked(self, shard, row, kind))
    trial._judge(harmed)
    assert trial.found["tar: sequences"] == {"refused": 1, "OTHER DATA": 1}


def _unchecked(reader: Reader, shard: manifest.Shard, row: int, kind: str) -> bytes:
    place = reader.index(shard)[row][kind]
    content = (Path(reader.url) / shard.name).read_bytes()
    return content[int(place["start"]) :][: int(place["bytes"])]


@pytest.mark.parametrize("read", [check_dataset, sequences, texts], ids=lambda one: one.__name__)
@pytest.mark.parametrize("harm", [Path.unlink, lambda path: flip(path, 300), DAMAGE["empty"]])
def test_a_damaged_index_is_refused(copy: Path, harm, read) -> None:
    harm(copy / "train-000002.index.npy")
    with pytest.raises(ShardIntegrityError, match=r"train-000002\.index\.npy") as caught:
        read(str(copy))
    assert caught.value.shard in {SHARD, "train-000002.index.npy"}


def test_an_index_is_made_again_from_a_whole_tar_when_faults_may_be_mended(whole: Path, copy: Path) -> None:
    told: list[ShardIntegrityError] = []
    (copy / "train-000002.index.npy").unlink()
    with Reader(str(copy), on_fault=told.append) as reader:
        rows = reader.index(reader.manifest.shards[2])
    assert index.to_bytes(rows) == (whole / "train-000002.index.npy").read_bytes()
    assert [fault.shard for fault in told] == [SHARD]


def test_without_the_tar_there_is_nothing_to_make_an_index_from(copy: Path) -> None:
    (copy / "train-000002.index.npy").unlink()
    flip(copy / SHARD, 5000)
    with (
        Reader(str(copy), on_fault=lambda fault: None) as reader,
        pytest.raises(ShardIntegrityError, match="neither"),
    ):
        reader.index(reader.manifest.shards[2])


def test_every_fault_is_listed_not_only_the_first(copy: Path) -> None:
    flip(copy / "train-000000.tar", 3)
    flip(copy / "train-000001.index.npy", 40)
    (copy / SHARD).unlink()
    flip(copy / "tokenizer.json", 4)
    shutil.copy(copy / "train-000000.tar", copy / "train-000099.tar")
    assert {fault.shard for fault in faults_of(str(copy))} == {
        "train-000000.tar",
        "train-000001.index.npy",
        SHARD,
        "tokenizer.json",
        "train-000099.tar",
    }


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_stock_webdataset_loses_samples_of_a_cut_shard_without_an_error(copy: Path) -> None:
    """Why the manifest is there; when this fails, upstream has mended it."""
    import webdataset as wds

    cut_at_a_member(copy / SHARD)
    left = list(wds.WebDataset([str(copy / SHARD)], shardshuffle=False))
    gc.collect()
    assert len(left) == 2


def test_without_a_manifest_there_is_no_data_set(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    with pytest.raises(DataError, match="stanchion run shard_dataset"):
        check_dataset(str(copy))


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"schema_version": 2}', "[" * 100_000, "null"])
def test_a_manifest_that_does_not_hold_is_refused(copy: Path, content: str) -> None:
    (copy / "manifest.json").write_text(content)
    with pytest.raises(ShardIntegrityError, match=r"manifest\.json"):
        manifest.read(str(copy))


def edited(folder: Path, change: Callable[[dict], object]) -> Path:
    """The folder, its manifest changed and nothing else."""
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["shards"].pop(),
        lambda m: m["shards"].append(m["shards"][0]),
        lambda m: m["shards"][0].update(split="tr`in"),
        lambda m: m["shards"][0].update(samples=4),
        lambda m: m["shards"][0].update(tokens=m["shards"][0]["tokens"] + 1),
        lambda m: m["shards"][0].update(tokens=10**30),
        lambda m: m["splits"]["train"].update(documents=14),
        lambda m: m["splits"].pop("held_out"),
        lambda m: m.update(sources={"train": {"code": {"documents": 1, "tokens": 1}}}),
        lambda m: m["files"].update({"manifest.json": m["files"]["tokenizer.json"]}),
        lambda m: m["files"].update({"train-000000.tar": m["files"]["tokenizer.json"]}),
        lambda m: m.update(unknown=1),
        lambda m: m.update(schema_version=3),
    ],
    ids=lambda one: "",
)
def test_a_manifest_that_does_not_add_up_is_refused_without_its_digest(copy: Path, change) -> None:
    with pytest.raises(ShardIntegrityError, match=r"manifest\.json"):
        Reader(str(edited(copy, change)))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["shards"][0].update(bytes=m["shards"][0]["bytes"] + 512),
        lambda m: m["shards"][0].update(index_bytes=1),
        lambda m: m["shards"][0].update(sha256="0" * 64),
        lambda m: m["files"]["tokenizer.json"].update(bytes=1),
        lambda m: m.update(vocab_size=100),
        lambda m: [shard.update(source="prose") for shard in m["shards"]],
        lambda m: (
            m["shards"][0].update(name="train-000001.tar"),
            m["shards"][1].update(name="train-000000.tar"),
        ),
    ],
    ids=lambda one: "",
)
def test_a_manifest_that_its_files_contradict_is_refused_without_its_digest(copy: Path, change) -> None:
    with pytest.raises(ShardIntegrityError):
        check_dataset(str(edited(copy, change)))


def test_a_held_out_shard_that_is_passed_off_as_training_data_is_refused(copy: Path) -> None:
    def relabel(content: dict) -> None:
        content["shards"][-1]["split"] = "train"
        both = [content["splits"].pop("held_out"), content["splits"]["train"]]
        content["splits"]["train"] = {k: sum(one[k] for one in both) for k in ("documents", "tokens")}

    with pytest.raises(ShardIntegrityError, match="held_out"):
        check_dataset(str(edited(copy, relabel)))


def test_the_digest_of_a_manifest_refuses_every_other_one(copy: Path, whole: Path) -> None:
    recorded = manifest.digest(str(whole))
    assert check_dataset(str(copy), digest=recorded) == manifest.read(str(whole))
    edited(copy, lambda content: content["set_aside"].update(planted=1))
    check_dataset(str(copy))
    for read in (check_dataset, Reader, sequences):
        with pytest.raises(ShardIntegrityError, match="expected"):
            read(str(copy), digest=recorded)


def test_ids_outside_of_the_vocabulary_are_refused(tmp_path: Path, whole: Path) -> None:
    import numpy as np

    with Reader(str(whole)) as reader:
        good = reader.sample(reader.manifest.shards[0], 0)
    shards = []
    for split in ("train", "held_out"):
        bad = Sample(good.document, split, np.array([7, _data.VOCABULARY, 0], dtype=np.uint16))
        shards.append(write_shard(tmp_path / f"{split}-000000.tar", split, [bad]))
    _data.write_manifest(tmp_path, shards)
    with pytest.raises(ShardIntegrityError, match="the vocabulary has 251"):
        check_dataset(str(tmp_path))
    with Reader(str(tmp_path)) as reader, pytest.raises(ShardIntegrityError, match="the vocabulary has 251"):
        TokenStream(reader, "train", sequence_length=2, batch_size=1, seed=0, packing=Config()).batch(0)


def test_checking_tells_how_far_it_is(whole: Path) -> None:
    told: list[tuple[int, int]] = []
    check_dataset(str(whole), on_progress=lambda done, total: told.append((done, total)))
    total = sum(path.stat().st_size for path in _data.files_of(whole) if path.name != "manifest.json")
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)


def test_a_data_set_is_checked_where_it_lies(whole: Path) -> None:
    url = storage.publish_folder(whole, "memory://checked/shards", last=manifest.NAME)
    assert check_dataset(url) == manifest.read(str(whole))


def test_a_fault_crosses_from_a_worker_whole() -> None:
    import pickle

    fault = ShardIntegrityError("m", shard="s", key="k", offset=5)
    again = pickle.loads(pickle.dumps(fault))
    assert (str(again), again.shard, again.key, again.offset) == ("m", "s", "k", 5)
