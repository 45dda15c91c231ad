"""Ids have exactly their text, and are the library's own, however the words of a text are remembered."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from components.data import encoder, tokenizer
from components.data.encoder import Encoder

TEXTS = [path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py"))[:20]]
LEARNT = tokenizer.train([*TEXTS, "naïve façade — “quoted” 漢字 🙂"] * 2, tokenizer.Config(vocab_size=900))
ENCODER = Encoder(LEARNT)
BLANKS = " \n\t\r\x0b\x0c\x1c\x1d\x1f\x85\xa0\u2003\u2028\u3000"
TRICKY = BLANKS + "aZ09'\x00\x7f_-.<|>sdmtlvré漢ß²½٣Ⅷ\u0301\u200d🙂\U0001e900"
ANY_TEXT = st.lists(
    st.one_of(
        st.text(alphabet=TRICKY, max_size=12),
        st.text(max_size=6).filter(lambda text: text.isprintable()),
        st.sampled_from(
            ["don't ", "I'll", "'ve", "  ", "\n\n", " 漢", "end.\nNext", "<|endoftext|>", "é\nb", "x y"]
        ),
    ),
    max_size=12,
).map("".join)


def by_the_library(learnt: Tokenizer, text: str) -> list[int]:
    """Ids of a text that is given to the tokenizer whole."""
    learnt.encode_special_tokens = True
    try:
        return list(learnt.encode(text, add_special_tokens=False).ids)
    finally:
        learnt.encode_special_tokens = False


def test_the_tokenizer_of_every_data_set_is_one_whose_words_are_remembered() -> None:
    assert encoder.cuts_as_here(LEARNT)


@settings(max_examples=1500, deadline=None)
@given(ANY_TEXT)
@example("a  b\n \n“c” d\u00a0e \u3000f")
@example("a\n'sé 't")
def test_remembered_words_give_the_ids_of_the_library(text: str) -> None:
    (ids,) = ENCODER([text])
    assert ids.tolist() == [*by_the_library(LEARNT, text), tokenizer.END_OF_TEXT_ID]


def test_every_letter_of_unicode_is_cut_as_the_library_cuts_it() -> None:
    letters = [chr(code) for code in range(0x80, 0x3100) if unicodedata.category(chr(code)) != "Cn"]
    texts = [
        f"{before}{letter}{after}" for letter in letters for before, after in (("a ", "b c"), ("x\n", "\n1"))
    ]
    assert [ids.tolist()[:-1] for ids in ENCODER(texts)] == [by_the_library(LEARNT, text) for text in texts]


@pytest.mark.parametrize("text", ["def f():\n\treturn 'ü 漢字 🙂'\r\n", "  <|endoftext|> x", "\0\x7f", ""])
def test_ids_have_exactly_their_text_whatever_it_says(text: str) -> None:
    (ids,) = ENCODER([text])
    assert list(ids).count(tokenizer.END_OF_TEXT_ID) == 1
    assert ids[-1] == tokenizer.END_OF_TEXT_ID
    assert LEARNT.decode(ids[:-1].tolist(), skip_special_tokens=False) == text


def test_a_tokenizer_that_changes_its_text_is_asked_for_every_document() -> None:
    lowers = Tokenizer.from_str(LEARNT.to_str())
    lowers.normalizer = normalizers.Lowercase()
    cuts_elsewhere = Tokenizer.from_str(LEARNT.to_str())
    cuts_elsewhere.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    knows_a_word = Tokenizer.from_str(LEARNT.to_str())
    knows_a_word.add_tokens(["two words"])
    for learnt in (lowers, cuts_elsewhere, knows_a_word):
        assert not encoder.cuts_as_here(learnt)
        (ids,) = Encoder(learnt)(["Some two words"])
        assert ids.tolist()[:-1] == by_the_library(learnt, "Some two words")


def test_what_is_remembered_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "WORDS", 10)
    bounded, texts = Encoder(LEARNT), [f"word{number:x} {'long' * 40}" for number in range(200)]
    found = bounded(texts)
    assert len(bounded._of_word) <= 10
    assert [ids.tolist()[:-1] for ids in found] == [by_the_library(LEARNT, text) for text in texts]


def test_ids_take_the_smallest_type_that_holds_the_vocabulary() -> None:
    (ids,) = ENCODER(["x"])
    assert ids.dtype == np.dtype("<u2")
    many = Tokenizer.from_str(LEARNT.to_str())
    many.add_tokens([f"tok{number}" for number in range(1 << 16)])
    assert Encoder(many)(["x"])[0].dtype == np.dtype("<u4")
