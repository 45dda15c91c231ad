"""What would leak held-out documents or evaluation sets is found as planted, and boilerplate is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from components.data.curation import curate
from components.data.curation.contamination import Config, Screen
from components.data.curation.words import words_of
from components.data.document import Document, document_of
from components.data.sources import python_stdlib

MODULES = [one.text for one in python_stdlib.read(python_stdlib.Config()) if 4_000 < len(one.text) < 40_000]
STRICTEST = Config(held_out_passage=13, evaluation_passage=13, boilerplate_documents=None)


def leaks(config: Config, protected: list[str], documents: list[str]) -> dict[int, str]:
    screen = Screen(config)
    for number, text in enumerate(protected):
        screen.protect(text, f"protected {number}", config.held_out_passage)
    for number, text in enumerate(documents):
        screen.look(number, text, may_leak=True)
    return screen.leaks()


def passage(text: str, words: int, draw: random.Random) -> str:
    """So many consecutive words, typeset otherwise."""
    whole = [word for word in text.split() if any(character.isalnum() for character in word)]
    start = draw.randrange(len(whole) - words)
    return ",\n".join(whole[start : start + words]).upper()


def planted(text: str, copied: str, draw: random.Random) -> str:
    lines = text.splitlines()
    lines.insert(draw.randrange(len(lines)), copied)
    return "\n".join(lines)


@pytest.fixture(scope="module")
def apart() -> tuple[list[str], list[str]]:
    """Texts to protect, and as many others that share no run of 13 words with them."""
    texts = random.Random(0).sample(MODULES, 400)
    protected, others = texts[:150], texts[150:]
    bad = leaks(STRICTEST, protected, others)
    return protected, [text for number, text in enumerate(others) if number not in bad][:150]


@pytest.mark.parametrize(("config", "words"), [(STRICTEST, 13), (Config(), 50)], ids=["strictest", "default"])
def test_planted_passages_are_found_and_nothing_else(
    apart: tuple[list[str], list[str]], config: Config, words: int
) -> None:
    protected, clean = apart
    draw = random.Random(words)
    copied = [passage(secret, words, draw) for secret in protected]
    dirty = [planted(text, copy, draw) for text, copy in zip(clean, copied, strict=False)]
    found = leaks(config, protected, clean + dirty)
    assert len(clean) > 100
    assert sum(number >= len(clean) for number in found) / len(dirty) >= 0.99
    assert not any(number < len(clean) for number in found)
    named = {number: protected[int(name.split()[1])] for number, name in found.items()}
    assert all(in_words(copied[number - len(clean)]) in in_words(text) for number, text in named.items())


def in_words(text: str) -> str:
    return " ".join(word.decode() for word in words_of(text))


def test_a_passage_shorter_than_asked_is_no_leak(apart: tuple[list[str], list[str]]) -> None:
    (secret, *_), (text, *_) = apart
    draw = random.Random(3)
    for words in (12, 40, 48):
        assert leaks(Config(), [secret], [planted(text, passage(secret, words, draw), draw)]) == {}
    assert leaks(STRICTEST, [secret], [planted(text, passage(secret, 12, draw), draw)]) == {}


def test_what_many_documents_share_is_boilerplate(apart: tuple[list[str], list[str]]) -> None:
    (secret, *_), clean = apart
    licence = passage(secret, 60, random.Random(4))
    few = [f"{licence}\n{text}" for text in clean[:10]]
    assert set(leaks(Config(), [secret], few)) == set(range(10))
    many = [f"{licence}\n{text}" for text in clean[:11]]
    assert leaks(Config(), [secret], many) == {}
    assert set(leaks(STRICTEST, [secret], many)) == set(range(11))


def test_a_short_text_is_looked_for_as_a_whole_and_a_shorter_one_is_counted() -> None:
    question = "Which planet has the most moons of all?"
    screen = Screen(Config())
    screen.protect(question, "quiz", 13)
    screen.protect("Why is that?", "quiz", 13)
    assert (screen.protected, screen.unscreened) == (1, 1)
    screen.look(0, f"A quiz. {question} Saturn. And one more: why is that?", may_leak=True)
    screen.look(1, "Which planet has the most moons of those we know? Why is that?", may_leak=True)
    assert screen.leaks() == {0: "quiz"}


def test_a_run_that_two_protected_texts_share_counts_for_both() -> None:
    words = [f"word{i}" for i in range(90)]
    screen = Screen(Config())
    screen.protect(" ".join(words[:40]), "first", 50)
    screen.protect(" ".join(words), "second", 50)
    screen.look(0, " ".join(words[10:70]), may_leak=True)
    screen.look(1, " ".join(words[:40]), may_leak=True)
    assert screen.leaks() == {0: "second", 1: "first"}


def split_of(document: Document) -> str:
    return "held_out" if document.path.startswith("held_out") else "train"


def documents(apart: tuple[list[str], list[str]]) -> list[Document]:
    (secret, *_), clean = apart
    draw = random.Random(5)
    leaking = planted(clean[0], passage(secret, 55, draw), draw)
    texts = {"held_out.py": secret, "leak.py": leaking} | {f"{i}.py": t for i, t in enumerate(clean[1:40])}
    return [document_of(text.encode(), path) for path, text in texts.items()]


@pytest.mark.parametrize("spooled", [False, True])
def test_curation_sets_a_leaking_document_aside_and_names_what_it_leaks(
    apart: tuple[list[str], list[str]], tmp_path: Path, spooled: bool
) -> None:
    read = documents(apart)
    held_out, leak, *others = read
    scratch = tmp_path if spooled else None
    checked = curate.curate(read, curate.Config(), scratch=scratch, split_of=split_of)
    (one,) = checked.set_aside
    assert (one.reason, one.path, one.of) == ("contaminated", leak.path, held_out.key)
    assert list(checked.kept) == [held_out, *others]
    assert checked.report["contamination"]["of"] == {"held_out": 1}


def test_an_evaluation_set_is_kept_out_of_training(apart: tuple[list[str], list[str]]) -> None:
    exam = {"kind": "python_stdlib", "max_documents": 30}
    (first, *_) = python_stdlib.read(python_stdlib.Config(max_documents=1))
    config = curate.Config.model_validate({"contamination": {"evaluation_sets": {"exam": exam}}})
    draw = random.Random(6)
    clean = [document_of(t.encode(), f"{i}.py") for i, t in enumerate(apart[1][:30])]
    leak = document_of(planted(apart[1][31], passage(first.text, 14, draw), draw).encode(), "leak.py")
    checked = curate.curate([*clean, leak], config)
    found = {one.path: one.of for one in checked.set_aside if one.reason == "contaminated"}
    assert found["leak.py"] == "exam"
    assert checked.report["contamination"]["protected"] + checked.report["contamination"]["unscreened"] == 30
    assert checked.report["contamination"]["of"]["exam"] == len(found)


def test_without_a_screen_nothing_is_a_leak(apart: tuple[list[str], list[str]]) -> None:
    read = documents(apart)
    config = curate.Config(contamination=None)
    assert curate.curate(read, config, split_of=split_of).set_aside == []
