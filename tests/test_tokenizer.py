"""Ids have exactly their text, whatever it says; a data set's vocabulary is the one that others load."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from case_studies.proofs import _data
from components.data import manifest, tokenizer, unigram
from components.errors import DataError, ShardIntegrityError

TEXTS = [f"def function_{i}(x):\n    return x + {i}  # number {i * i * 7919}\n" * 2 for i in range(30)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _data.make_real(tmp_path_factory.mktemp("data") / "real")


def test_equal_texts_train_an_equal_tokenizer() -> None:
    one, two = (tokenizer.train(TEXTS, tokenizer.Config(vocab_size=400)).to_str() for _ in range(2))
    assert one == two


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


def test_a_copy_of_a_tokenizer_is_what_the_manifest_says(built: Path, tmp_path: Path) -> None:
    copied = tokenizer.fetch(str(built), manifest.read(str(built)), tmp_path / "copied")
    assert {path.name for path in copied.iterdir()} == set(tokenizer.FILES)
    assert all((copied / name).read_bytes() == (built / name).read_bytes() for name in tokenizer.FILES)


@pytest.mark.parametrize("name", tokenizer.FILES)
@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_a_changed_or_missing_tokenizer_is_named(built: Path, tmp_path: Path, name: str, harm) -> None:
    copy = Path(shutil.copytree(built, tmp_path / "copy"))
    harm(copy / name)
    with pytest.raises(ShardIntegrityError, match=name):
        tokenizer.fetch(str(copy), manifest.read(str(copy)), tmp_path / "copied")


def test_the_unigram_bar_is_the_loss_of_counting() -> None:
    train, held_out = np.array([3, 0, 0, 1]), np.array([1, 1, 0, 0])
    assert unigram.cross_entropy(train, held_out) == pytest.approx(-(np.log(4 / 8) + np.log(1 / 8)) / 2)
