"""Documents are checked, shards are what their manifest says, batches do not depend on who reads them."""

from __future__ import annotations

import gc
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from components import storage
from components.data import dataset, manifest, shards, stream, tokenizer, unigram, vocabulary
from components.data.curation import curate
from components.data.curation.checked import Checked
from components.data.document import Document, document_of
from components.data.integrity import check_dataset, read_shard
from components.data.sources import python_stdlib
from components.data.stream import TokenStream
from components.errors import ConfigError, DataError, ShardIntegrityError

TOKENIZER = tokenizer.Config(vocab_size=400)
SHARDS = shards.Config(documents_per_shard=9, held_out_share=0.2)
CHECKS = curate.Config()


@pytest.fixture(scope="session")
def checked() -> Checked:
    documents = python_stdlib.read(python_stdlib.Config(max_documents=30))
    return curate.curate(documents, CHECKS)


def build(checked: Checked, folder: Path) -> Path:
    learnt = vocabulary.learn(checked.kept, TOKENIZER, SHARDS)
    source, scratch = python_stdlib.Config(max_documents=30), folder.with_name(f"{folder.name}-scratch")
    dataset.make_dataset(checked, learnt, str(folder), source=source, config=SHARDS, scratch=scratch)
    return folder


@pytest.fixture(scope="session")
def built(checked: Checked, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of real files; tests that break it take a copy."""
    return build(checked, tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def document(text: str, path: str = "a.py") -> Document:
    return document_of(text.encode(), path)


GOOD = [
    document(f"def function_{i}(x):\n    return x + {i}  # number {i * i * 7919}\n" * 2) for i in range(30)
]


# Tokenizer


def test_equal_texts_train_an_equal_tokenizer() -> None:
    one, two = (tokenizer.train((d.text for d in GOOD), TOKENIZER).to_str() for _ in range(2))
    assert one == two


@pytest.mark.parametrize("text", ["def f():\n\treturn 'ü 漢字 🙂'\r\n", "  <|endoftext|> x", "\0\x7f"])
def test_ids_have_exactly_their_text_whatever_it_says(built: Path, text: str) -> None:
    learnt = tokenizer.load(built)
    (ids,) = tokenizer.encode(learnt, [text])
    assert list(ids).count(tokenizer.END_OF_TEXT_ID) == 1
    assert ids[-1] == tokenizer.END_OF_TEXT_ID
    assert learnt.decode(ids[:-1].tolist(), skip_special_tokens=False) == text


def test_transformers_loads_the_tokenizer_of_a_data_set(built: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(built)
    assert loaded.is_fast
    assert loaded.eos_token_id == loaded.bos_token_id == loaded.pad_token_id == tokenizer.END_OF_TEXT_ID
    text = "import json\n\n\ndef f(x):\n    return json.dumps(x)\n"
    assert loaded(text)["input_ids"] == tokenizer.load(built).encode(text).ids
    assert loaded.decode(loaded(text)["input_ids"]) == text


def test_a_folder_without_a_tokenizer_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give the folder of a data set"):
        tokenizer.load(tmp_path)


# Shards and manifest

webdataset_leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def test_two_builds_are_equal_byte_by_byte(checked: Checked, built: Path, tmp_path: Path) -> None:
    again = build(checked, tmp_path / "again")
    assert storage.listing(str(again)) == storage.listing(str(built))
    for name in storage.listing(str(built)):
        assert (again / name).read_bytes() == (built / name).read_bytes(), name


@webdataset_leaves_files_open
def test_webdataset_reads_the_shards_unchanged(built: Path, checked: Checked) -> None:
    import webdataset as wds

    names = [str(built / shard.name) for shard in manifest.read(str(built)).shards]
    read = {one["__key__"]: one for one in wds.WebDataset(names, shardshuffle=False).decode()}
    gc.collect()
    assert set(read) == {one.key for one in checked.kept}
    for one in checked.kept:
        assert read[one.key]["txt"] == one.text
        assert read[one.key]["json"]["sha256"] == one.sha256
        assert read[one.key]["npy"].dtype == np.uint16


def test_no_document_is_in_both_splits_and_none_is_lost(built: Path, checked: Checked) -> None:
    train, held_out = (
        {one.sha256 for one in stream.documents(built, split)} for split in ("train", "held_out")
    )
    assert not train & held_out
    assert train | held_out == {one.sha256 for one in checked.kept}


def test_a_document_keeps_its_split_when_others_join(checked: Checked) -> None:
    alone = {one.key: shards.split_of(one, SHARDS) for one in checked.kept[:5]}
    assert all(shards.split_of(one, SHARDS) == alone[one.key] for one in checked.kept if one.key in alone)
    share = [shards.split_of(document(f"text {i}"), SHARDS) for i in range(2000)].count("held_out") / 2000
    assert share == pytest.approx(SHARDS.held_out_share, abs=0.03)


def test_tokens_are_the_ids_of_their_text(built: Path) -> None:
    learnt, listed = tokenizer.load(built), manifest.read(str(built))
    for sample in read_shard(str(built), listed.shards[0]):
        assert learnt.decode(sample.tokens[:-1].tolist()) == sample.document.text
    assert sum(shard.tokens for shard in listed.shards) == sum(s.tokens for s in listed.splits.values())


def test_the_unigram_bar_is_the_loss_of_counting() -> None:
    train, held_out = np.array([3, 0, 0, 1]), np.array([1, 1, 0, 0])
    assert unigram.cross_entropy(train, held_out) == pytest.approx(-(np.log(4 / 8) + np.log(1 / 8)) / 2)


def test_the_manifest_holds_the_bar_of_the_real_split(built: Path) -> None:
    listed = manifest.read(str(built))
    counts = {
        split: np.bincount(
            TokenStream(built, split, 16, seed=0).tokens.astype(np.int64), minlength=listed.vocab_size
        )
        for split in listed.splits
    }
    assert listed.unigram_cross_entropy == unigram.cross_entropy(counts["train"], counts["held_out"])
    assert 0 < listed.unigram_cross_entropy < np.log(listed.vocab_size)


# Integrity


def truncate_at_a_member(path: Path) -> None:
    """What remains is a valid, shorter tar."""
    with tarfile.open(path) as tar:
        middle = tar.getmembers()[6].offset
    path.write_bytes(path.read_bytes()[:middle])


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "cut at a member boundary": truncate_at_a_member,
    "cut in a member": lambda path: path.write_bytes(path.read_bytes()[:-700]),
    "flipped header bit": lambda path: flip(path, 3),
    "flipped payload bit": lambda path: flip(path, 520),
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_shard_is_named_by_whoever_reads_it(copy: Path, damage) -> None:
    damage(copy / "train-000001.tar")
    with pytest.raises(ShardIntegrityError, match=r"train-000001\.tar"):
        check_dataset(str(copy))
    with pytest.raises(ShardIntegrityError, match=r"train-000001\.tar"):
        TokenStream(copy, "train", 32, seed=0)
    with pytest.raises(ShardIntegrityError, match=r"train-000001\.tar"):
        list(stream.documents(copy, "train"))


@webdataset_leaves_files_open
def test_stock_webdataset_loses_samples_of_a_cut_shard_without_an_error(copy: Path) -> None:
    """Why the manifest is there; when this fails, upstream has mended it."""
    import webdataset as wds

    truncate_at_a_member(copy / "train-000001.tar")
    left = list(wds.WebDataset([str(copy / "train-000001.tar")], shardshuffle=False))
    gc.collect()
    assert len(left) == 2


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_changed_tokenizer_is_named(copy: Path, name: str) -> None:
    flip(copy / name, 20)
    with pytest.raises(ShardIntegrityError, match=name):
        check_dataset(str(copy))


def test_a_file_that_no_manifest_lists_is_named(copy: Path) -> None:
    shutil.copy(copy / "train-000000.tar", copy / "train-000099.tar")
    with pytest.raises(ShardIntegrityError, match=r"train-000099\.tar"):
        check_dataset(str(copy))


def test_without_a_manifest_there_is_no_data_set(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    with pytest.raises(DataError, match="stanchion run shard_dataset"):
        check_dataset(str(copy))


@pytest.mark.parametrize("content", ["{}", "not json", '{"schema_version": 2}'])
def test_a_manifest_that_does_not_hold_is_refused(copy: Path, content: str) -> None:
    (copy / "manifest.json").write_text(content)
    with pytest.raises(ShardIntegrityError, match=r"manifest\.json"):
        manifest.read(str(copy))


def test_another_manifest_than_the_recorded_one_is_refused(copy: Path, built: Path) -> None:
    recorded = manifest.digest(str(built))
    assert check_dataset(str(copy), digest=recorded) == manifest.read(str(built))
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"set_aside": {', '"set_aside": {"planted": 1,'))
    with pytest.raises(ShardIntegrityError, match="expected"):
        check_dataset(str(copy), digest=recorded)


def test_checking_tells_how_far_it_is(built: Path) -> None:
    told: list[tuple[int, int]] = []
    check_dataset(str(built), on_progress=lambda done, total: told.append((done, total)))
    assert told == [(i + 1, len(told)) for i in range(len(told))]


def test_a_data_set_is_checked_where_it_lies(built: Path) -> None:
    url = storage.publish_folder(built, "memory://checked/shards", last=manifest.NAME)
    assert check_dataset(url) == manifest.read(str(built))


# Batches


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(built: Path, world_size: int) -> None:
    whole, ours = (TokenStream(built, "train", 32, seed=3) for _ in range(2))
    for step in (0, 1, 7, 1000):
        parts = [ours.batch(step, 8, rank, world_size) for rank in range(world_size)]
        assert {part.shape for part in parts} == {(8 // world_size, 33)}
        assert {part.dtype for part in parts} == {np.dtype(np.int64)}
        np.testing.assert_array_equal(np.concatenate(parts), whole.batch(step, 8, 0, 1))


def test_an_epoch_holds_every_window_once_and_the_next_has_another_order(built: Path) -> None:
    data = TokenStream(built, "held_out", 64, seed=0)
    count = data.num_windows
    epochs = [[data.window(epoch * count + i).tobytes() for i in range(count)] for epoch in range(3)]
    windows = {data.tokens[i * 64 : i * 64 + 65].astype(np.int64).tobytes() for i in range(count)}
    assert all(set(epoch) == windows for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_a_batch_across_the_end_of_an_epoch_is_whole(built: Path) -> None:
    data = TokenStream(built, "held_out", 64, seed=0)
    size = data.num_windows - 1
    across = data.batch(1, size, 0, 1)
    expected = [data.window(position) for position in range(size, 2 * size)]
    np.testing.assert_array_equal(across, np.stack(expected))


def test_another_seed_is_another_order(built: Path) -> None:
    one, two = (TokenStream(built, "train", 32, seed=seed).batch(0, 8, 0, 1) for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_the_order_of_a_seed_never_changes(built: Path) -> None:
    assert stream._permutation(8, 0, 0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]


def test_neighbouring_windows_share_one_token(built: Path) -> None:
    data = TokenStream(built, "train", 32, seed=0)
    order = np.argsort(data._order_of(0))
    first, second = data.window(int(order[0])), data.window(int(order[1]))
    assert first[-1] == second[0]


def test_the_held_out_batch_is_the_same_for_everyone(built: Path) -> None:
    one, two = (stream.fixed_batch(built, 6, 32) for _ in range(2))
    assert one.shape == (6, 33)
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda folder: TokenStream(folder, "train", 32, 0).batch(0, 6, 0, 4), "use 8"),
        (lambda folder: TokenStream(folder, "test", 32, 0), "train"),
        (lambda folder: TokenStream(folder, "train", 10**8, 0), "lower it"),
        (lambda folder: stream.fixed_batch(folder, 10**6, 32), "ask for fewer"),
    ],
    ids=["batch size", "split", "sequence length", "held-out batch"],
)
def test_what_does_not_fit_says_what_would(built: Path, ask, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(built)
