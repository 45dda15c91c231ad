"""Almost equal documents are found as surely as planted, measured word by word, and others are kept."""

from __future__ import annotations

import random
import re
import string

import pytest

from components.data.curation.near_duplicates import Config, NearDuplicates, bands
from components.data.curation.words import words_of
from components.data.sources import python_stdlib
from components.errors import ConfigError

MODULES = [one.text for one in python_stdlib.read(python_stdlib.Config()) if 3_000 < len(one.text) < 30_000]


def shingles(text: str) -> set[tuple[str, ...]]:
    """The definition, word by word and without a hash."""
    words = re.sub(f"[{re.escape(string.punctuation)}]", "", text.lower()).split()
    return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}


def likeness(one: str, other: str) -> float:
    some, others = shingles(one), shingles(other)
    return len(some & others) / len(some | others)


def edited(text: str, least: float, most: float, draw: random.Random) -> str | None:
    """The text with words replaced until it is as like the old one as asked; None where no edit fits."""
    words = text.split(" ")
    places = [place for place, word in enumerate(words) if word.strip(string.punctuation + string.whitespace)]
    draw.shuffle(places)
    target = draw.uniform(least, most)
    fewest, enough = 0, len(places)
    while enough - fewest > 1:
        half = (fewest + enough) // 2
        if likeness(text, _replaced(words, places[:half])) > target:
            fewest = half
        else:
            enough = half
    copy = _replaced(words, places[:enough])
    return copy if least <= likeness(text, copy) <= most else None


def _replaced(words: list[str], places: list[int]) -> str:
    gone = set(places)
    return " ".join(f"edit{place}" if place in gone else word for place, word in enumerate(words))


def found(pairs: list[tuple[str, str]]) -> list[bool]:
    """Whether the second of each pair is called a copy of the first, with all pairs in one index."""
    kept = [first for first, _ in pairs]
    index = NearDuplicates(Config(), kept.__getitem__)
    for number, text in enumerate(kept):
        assert index.first_like(text) is None, number
    return [index.first_like(second) == number for number, (_, second) in enumerate(pairs)]


@pytest.fixture(scope="module")
def originals() -> list[str]:
    """Real modules of which no two are alike."""
    kept: list[str] = []
    index = NearDuplicates(Config(), kept.__getitem__)
    for text in MODULES:
        if len(shingles(text)) > 100 and index.first_like(text) is None:
            kept.append(text)
    return random.Random(0).sample(kept, 160)


def test_planted_copies_are_found_and_nothing_else(originals: list[str]) -> None:
    draw = random.Random(1)
    alike, unlike = [], []
    for text in originals:
        copy, other = edited(text, 0.8, 0.98, draw), edited(text, 0.5, 0.7, draw)
        alike += [(text, copy)] if copy else []
        unlike += [(text, other)] if other else []
    assert min(len(alike), len(unlike)) > 140
    hits, false_alarms = sum(found(alike)), sum(found(unlike))
    assert hits / len(alike) >= 0.95
    assert hits / (hits + false_alarms) >= 0.95


def test_copies_just_past_the_threshold_are_found_and_those_just_before_it_are_not(
    originals: list[str],
) -> None:
    draw = random.Random(2)
    past = [(t, copy) for t in originals[:80] if (copy := edited(t, 0.80, 0.83, draw))]
    before = [(t, copy) for t in originals[:80] if (copy := edited(t, 0.76, 0.79, draw))]
    assert min(len(past), len(before)) > 60
    assert sum(found(past)) / len(past) >= 0.95
    assert sum(found(before)) == 0


def test_pages_of_one_template_cost_few_readings() -> None:
    draw = random.Random(3)
    words = MODULES[0].split()[:300]
    pages = [" ".join([*words, *(f"w{draw.randrange(10**9)}" for _ in range(75))]) for _ in range(200)]
    assert 0.6 < likeness(pages[0], pages[1]) < 0.8
    read = 0

    def text_of(number: int) -> str:
        nonlocal read
        read += 1
        return pages[number]

    index = NearDuplicates(Config(), text_of)
    assert [index.first_like(page) for page in pages] == [None] * len(pages)
    assert read <= 8 * len(pages)
    assert index.first_like(pages[120]) == 120


def test_the_first_stays_and_case_punctuation_and_lines_hide_no_copy() -> None:
    text = MODULES[0]
    index = NearDuplicates(Config(), [text].__getitem__)
    assert index.first_like(text) is None
    assert index.first_like(text.upper().replace("\n", "\r\n  ").replace(",", ";")) == 0


@pytest.mark.parametrize("same", ["to be", "", "?!", "x"])
def test_texts_of_fewer_words_than_a_shingle_are_alike_only_when_equal(same: str) -> None:
    texts = ["to be", "to be or", "or to be", "", "?!", "x"]
    index = NearDuplicates(Config(), texts.__getitem__)
    assert [index.first_like(text) for text in texts] == [None] * len(texts)
    assert index.first_like(same) == texts.index(same)


def test_words_are_lower_case_and_without_punctuation_of_any_script() -> None:
    assert [word.decode() for word in words_of("“Naïve”, she said — ÉTÉ… 終わり。 x\u00a0y")] == [
        *("naïve", "she", "said", "été", "終わり", "x\u00a0y"),
    ]


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_find_a_pair_at_the_threshold_in_99_of_100_cases(threshold: float) -> None:
    count, rows = bands(threshold, 128)
    assert count * rows <= 128
    assert 1 - (1 - threshold**rows) ** count >= 0.99


def test_a_threshold_too_low_for_its_minima_is_an_error() -> None:
    with pytest.raises(ConfigError, match="num_permutations"):
        bands(0.05, 32)
