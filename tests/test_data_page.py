"""The page of a data set says what it holds, what was set aside and what was expected, and stands alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from components.data import shards, tokenizer
from components.data.curation.curate import Config, curate
from components.data.document import Document, document_of
from components.data.lineage.left_out import LEAKS
from components.data.sources import python_stdlib
from components.data.writing import dataset
from components.errors import ShardIntegrityError
from components.observability import data_page
from components.records import RunFolder

HOSTILE = "<img src=x onerror=alert(1)>\u202egpj.py"
Publish = Callable[..., Path]


class Tags(HTMLParser):
    """Every tag with its attributes, and whether tags close in the order in which they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def prose(seed: int, words: int = 90) -> str:
    """Words that no other seed shares a run of."""
    return " ".join(f"w{seed * 7919 % 9973}x{n}" for n in range(words))


def split_of(document: Document) -> str:
    return "held_out" if document.path.startswith("held") else "train"


def corpus() -> list[Document]:
    """Sound, empty, copied, nearly copied and leaking documents."""
    texts = {f"sound-{n}.py": prose(n) for n in range(24)}
    texts |= {f"held-{n}.py": prose(100 + n) for n in range(3)}
    texts |= {"copy.py": prose(0), "empty.py": "", HOSTILE: prose(1) + " more"}
    texts |= {f"near-{n}.py": f"{prose(2)} {n}" for n in range(3)}
    texts |= {f"leak-{n}.py": f"{prose(200 + n)} {prose(100 + n % 3)}" for n in range(LEAKS + 2)}
    return [document_of(text.encode(), path) for path, text in texts.items()]


@pytest.fixture(scope="module")
def publish(tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Curate the corpus and publish it, whatever the suite says."""

    def made(checks: Config) -> Path:
        folder = tmp_path_factory.mktemp("data_set")
        checked = curate(corpus(), checks, split_of=split_of)
        trained = tokenizer.train([one.text for one in checked.kept], tokenizer.Config(vocab_size=320))
        dataset.make_dataset(
            checked,
            trained,
            str(folder / "shards"),
            source=python_stdlib.Config(),
            config=shards.Config(documents_per_shard=8, held_out_share=0.2),
            scratch=folder / "scratch",
        )
        return folder / "shards"

    return made


@pytest.fixture(scope="module")
def url(publish: Publish) -> Path:
    return publish(Config(max_contaminated_share=1, max_copies_share=1, max_set_aside_share=1))


@pytest.fixture(scope="module")
def page(url: Path) -> str:
    return data_page.page(str(url))


def test_the_page_stands_alone(page: str) -> None:
    tags = Tags(page)
    assert not tags.open
    assert not {tag for tag, _ in tags.tags} & {"script", "link", "iframe", "object", "img", "base"}
    assert not [attrs for _, attrs in tags.tags if {"src", "href", "onload", "onerror"} & set(attrs)]
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page


def test_a_hostile_path_is_shown_as_text(page: str) -> None:
    assert "&lt;img src=x onerror=alert(1)&gt;\ufffdgpj.py" in page
    assert "<img" not in page
    assert "\u202e" not in page


def test_each_reason_stands_with_its_count_the_largest_first(page: str) -> None:
    bars = page[page.index('<dl class="bars">') : page.index("</dl>", page.index('<dl class="bars">'))]
    found = re.findall(r"<dt>([^<]+)</dt>.*?width: ([\d.]+)%.*?<b>(\d+)</b>", bars)
    assert [(reason, int(count)) for reason, _, count in found] == [
        ("contaminated", LEAKS + 2),
        ("near duplicate", 4),
        ("duplicate", 1),
        ("empty", 1),
    ]
    assert float(found[0][1]) / float(found[2][1]) == pytest.approx(LEAKS + 2, rel=0.01)


def test_near_copies_stand_beside_the_first_of_them(page: str) -> None:
    row = page[page.index("<code>sound-2.py</code>") :]
    row = row[: row.index("</tr>")]
    assert '<td class="n">3</td>' in row
    assert all(f"<code>near-{n}.py</code>" in row for n in range(3))
    assert page.index("sound-2.py") < page.index("sound-1.py"), "the largest group is first"


def test_a_leak_stands_beside_what_it_leaks_and_some_are_left_out(page: str) -> None:
    leaks = re.findall(r"<tr><td><code>leak-(\d+).py</code></td><td><code>held-(\d).py</code>", page)
    assert leaks == [(str(n), str(n % 3)) for n in range(LEAKS)]
    assert f"{LEAKS + 2} documents hold passages of what a model is measured on; the first {LEAKS}:" in page


def test_what_holds_is_said_to_hold(page: str) -> None:
    assert re.search(r"all \d+ expectations hold", page)
    assert "✗" not in page


def test_a_failed_expectation_is_marked_and_first(publish: Publish) -> None:
    page = data_page.page(str(publish(Config(max_contaminated_share=0.01, max_copies_share=1))))
    assert re.search(r"1 of \d+ expectations failed", page)
    rows = re.findall(r'<tr class="(held|failed)">(.*?)</tr>', page)
    assert [state for state, _ in rows] == ["failed"] + ["held"] * (len(rows) - 1)
    assert "✗" in rows[0][1]
    assert "contaminated_share" in rows[0][1]


def test_a_data_set_without_findings_says_so(small_shards: Path) -> None:
    page = data_page.page(str(small_shards))
    assert "no expectation was recorded" in page
    assert "every document read was kept" in page


def test_a_mixture_shows_the_parts_of_each_split(short_shards: Path) -> None:
    page = data_page.page(str(short_shards))
    assert page.count("<td>mail</td>") == page.count("<td>code</td>") == 2


@pytest.mark.parametrize("name", ["expectations.json", "set_aside.jsonl"])
def test_a_changed_file_makes_no_page(publish: Publish, name: str) -> None:
    url = publish(Config(max_contaminated_share=1, max_copies_share=1, max_set_aside_share=1))
    (url / name).write_bytes((url / name).read_bytes().replace(b"near_duplicate", b"near_duplicatf"))
    with pytest.raises(ShardIntegrityError, match=name):
        data_page.page(str(url))


def test_the_page_lies_in_the_report_folder_of_a_run(url: Path, page: str, tmp_path: Path) -> None:
    there = data_page.write(RunFolder(str(tmp_path), "run"), str(url))
    assert Path(there) == tmp_path / "run" / "report" / "data.html"
    assert Path(there).read_text() == page


@pytest.mark.parametrize(("text", "expected"), [("a\ud800\n", "a\ufffd\ufffd"), ("x" * 200, "x" * 160 + "…")])
def test_what_cannot_be_seen_is_replaced_and_what_is_long_is_cut(text: str, expected: str) -> None:
    assert data_page.shown(text) == expected
