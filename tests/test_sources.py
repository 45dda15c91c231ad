"""Each source gives documents in one order, names where each was found, and sets aside what is no text."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import sysconfig
import tempfile
import threading
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from components import plugins, storage
from components.config import configure
from components.data.curation import curate
from components.data.document import Document, document_of
from components.data.sources import directory, huggingface, jsonl, mixture, parquet, python_stdlib
from components.errors import ConfigError, DataError

CHECKS = curate.Config()


def document(text: str, path: str = "a.py") -> Document:
    return document_of(text.encode(), path)


GOOD = [
    document(f"def function_{i}(x):\n    return x + {i}  # number {i * i * 7919}\n" * 2) for i in range(30)
]


def test_the_standard_library_is_read_in_one_order_each_content_once() -> None:
    twice = [list(python_stdlib.read(python_stdlib.Config(max_documents=50))) for _ in range(2)]
    assert twice[0] == twice[1]
    assert len({one.sha256 for one in twice[0]}) == len({one.key for one in twice[0]}) == 50
    assert [one.path for one in twice[0]] == sorted(one.path for one in twice[0])


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of our own making."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def put(root: Path, path: str, content: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)


def test_packages_and_tests_are_not_the_library(library: Path) -> None:
    for path in ("a.py", "site-packages/b.py", "dist-packages/c.py", "json/tests/d.py", "test/e.py", "f.txt"):
        put(library, path, path.encode())
    read = [one.path for one in python_stdlib.read(python_stdlib.Config())]
    assert read == ["a.py"]
    with_tests = [one.path for one in python_stdlib.read(python_stdlib.Config(include_tests=True))]
    assert with_tests == ["a.py", "json/tests/d.py", "test/e.py"]


def test_a_file_in_another_encoding_is_set_aside_and_counted(library: Path) -> None:
    put(library, "latin.py", "# café\n".encode("latin-1") * 20)
    for one in GOOD:
        put(library, f"{one.key}.py", one.text.encode())
    checked = curate.curate(python_stdlib.read(python_stdlib.Config()), CHECKS)
    assert checked.reasons == {"not_utf8": 1}
    assert checked.documents == len(GOOD) + 1


# Text files of a folder


def paths(documents: Iterable[Document]) -> list[str]:
    return [one.path for one in documents]


def test_files_of_a_folder_come_in_the_order_of_their_paths_without_hidden_ones(tmp_path: Path) -> None:
    for path in ("b.txt", "a/z.txt", "a.txt", "a/b/c.md", ".hidden.txt", ".git/d.txt", "a/.e/f.txt", "g.py"):
        put(tmp_path, path, path.encode())
    read = list(directory.read(directory.Config(path=str(tmp_path))))
    assert paths(read) == ["a.txt", "a/b/c.md", "a/z.txt", "b.txt"] == [one.text for one in read]


def test_patterns_say_which_files_are_read_and_which_are_not(tmp_path: Path) -> None:
    for path in ("a.py", "b/c.py", "b/tests/d.py", "e.txt"):
        put(tmp_path, path, b"x")
    config = directory.Config(path=str(tmp_path), patterns=["**/*.py"], without=["**/tests/**"])
    assert paths(directory.read(config)) == ["a.py", "b/c.py"]
    assert paths(directory.read(directory.Config(path=f"{tmp_path}/b/**/*.py"))) == ["c.py", "tests/d.py"]
    assert paths(directory.read(directory.Config(path=f"{tmp_path}/b/c.py"))) == ["c.py"]


@pytest.mark.parametrize(
    ("content", "text", "flaw"),
    [
        (b"x" * 100, "x" * 100, ""),
        (b"x" * 101, "", "too_large"),
        (b"", "", ""),
        ("café".encode("utf-16"), "", "not_utf8"),
        (b"a\r\n\0b", "a\r\n\0b", ""),
    ],
)
def test_a_file_is_a_text_or_has_a_flaw(tmp_path: Path, content: bytes, text: str, flaw: str) -> None:
    put(tmp_path, "a.txt", content)
    (read,) = directory.read(directory.Config(path=str(tmp_path), max_bytes=100))
    assert (read.text, read.flaw) == (text, flaw)


def test_remote_files_are_read_ahead_and_given_in_order(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        storage.write_bytes(f"{memory}/{number:02}.txt", b"text %d" % number)
    at_once, most, lock, open_read = 0, 0, threading.Lock(), storage.open_read

    @contextlib.contextmanager
    def slow(url: str) -> Iterator[BinaryIO]:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.02 if url.endswith("0.txt") else 0.001)
        with open_read(url) as file:
            yield file
        with lock:
            at_once -= 1

    monkeypatch.setattr(storage, "open_read", slow)
    read = directory.read(directory.Config(path=memory, readers=4))
    assert [one.text for one in read] == [f"text {number}" for number in range(40)]
    assert 1 < most <= 4


def test_reading_ahead_ends_when_nobody_reads_on(memory: str) -> None:
    for number in range(40):
        storage.write_bytes(f"{memory}/{number:02}.txt", b"x")
    read = directory.read(directory.Config(path=memory))
    next(read)
    read.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("read-ahead")]


# JSON lines

LINES = b"".join(b'{"text": "document %d \\u00e9", "id": %d}\n' % (i, i * 7919) for i in range(300))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".zst": lambda content: zstandard.ZstdCompressor().compress(content),
}


def lines_of(tmp_path: Path, content: bytes, **settings: object) -> list[Document]:
    put(tmp_path, "a.jsonl", content)
    return list(jsonl.read(jsonl.Config(path=f"{tmp_path}/a.jsonl", **settings)))


@pytest.mark.parametrize("ending", PACK)
def test_json_lines_are_the_same_however_they_are_packed(tmp_path: Path, ending: str) -> None:
    middle = LINES.index(b"\n", 5000) - 9  # two streams in one file, with a line across both
    put(tmp_path, f"a.jsonl{ending}", PACK[ending](LINES[:middle]) + PACK[ending](LINES[middle:]))
    read = list(jsonl.read(jsonl.Config(path=str(tmp_path))))
    assert [one.text for one in read] == [f"document {i} é" for i in range(300)]
    assert paths(read) == [f"a.jsonl{ending}:{i + 1}" for i in range(300)]
    assert read[0].sha256 == document("document 0 é").sha256


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        (b"not json", "not_json"),
        (b'{"text": "cut', "not_json"),
        (b'{"text": "a"} {"text": "b"}', "not_json"),
        (b'{"text": "\0"}', "not_json"),
        (b"\0\0\0{", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "not_json"),
        ('{"text": "café"}'.encode("latin-1"), "not_utf8"),
        (b'{"text": "half a pair \\ud800"}', "not_utf8"),
        (b'{"body": "a"}', "no_text"),
        (b'{"text": null}', "no_text"),
        (b'{"text": {"text": null}}', "no_text"),
        (b'{"text": 3}', "no_text"),
        (b'["text"]', "no_text"),
        (b"null", "no_text"),
        (b'{"text": "' + b"x" * 200_000 + b'"}', "too_large"),
    ],
    ids=range(16),
)
def test_a_line_that_gives_no_text_is_set_aside_and_the_next_is_read(
    tmp_path: Path, line: bytes, flaw: str
) -> None:
    read = lines_of(tmp_path, b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n', max_line_bytes=150_000)
    assert [(one.text, one.flaw) for one in read] == [("a", ""), ("", flaw), ("b", "")]
    assert read[1].path == "a.jsonl:2"
    assert len({one.key for one in read}) == 3


def test_a_byte_order_mark_other_line_ends_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"text": "a\\r\\n"}\r\n\r\n  \n{"text": "b\\u0000"}'
    read = lines_of(tmp_path, content)
    assert [(one.text, one.path) for one in read] == [("a\r\n", "a.jsonl:1"), ("b\0", "a.jsonl:4")]


def test_an_empty_file_of_lines_has_no_documents(tmp_path: Path) -> None:
    assert lines_of(tmp_path, b"") == []


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_packed_file_cut_anywhere_is_an_error_with_its_name_and_line(tmp_path: Path, ending: str) -> None:
    whole = PACK[ending](LINES)
    for cut in {*range(0, len(whole), 41), *range(len(whole) - 12, len(whole))}:
        put(tmp_path, f"a.jsonl{ending}", whole[:cut])
        read: list[Document] = []
        with pytest.raises(DataError, match=rf"a\.jsonl{ending}: cannot be read past line \d+") as error:
            read += jsonl.read(jsonl.Config(path=str(tmp_path)))
        assert error.value.__cause__


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_flipped_bit_in_a_packed_file_never_changes_a_text_unseen(tmp_path: Path, ending: str) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    whole = gzip.compress(LINES, mtime=0) if ending == ".gz" else compressor.compress(LINES)
    refused = 0
    for place in range(0, len(whole), 17):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        put(tmp_path, f"a.jsonl{ending}", bytes(damaged))
        try:
            read = list(jsonl.read(jsonl.Config(path=str(tmp_path))))
        except DataError:
            refused += 1
        else:  # a flag or a time in the header, which says nothing of the content
            assert [one.text for one in read] == [f"document {i} é" for i in range(300)]
    assert refused > 0.9 * len(range(0, len(whole), 17))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl.gz", LINES, "named like gzip, but begins like"),
        ("a.jsonl.gz", PACK[".zst"](LINES), "named like gzip, but begins like zstd"),
        ("a.jsonl.zst", PACK[".gz"](LINES), "named like zstd, but begins like gzip"),
        ("a.jsonl", PACK[".gz"](LINES), "named like plain text, but begins like gzip"),
        ("a.jsonl.gz", b"", "named like gzip, but begins like b''"),
        ("a.jsonl.gz", PACK[".gz"](LINES) + b"rubbish", "past line 300"),
        ("a.jsonl.zst", PACK[".zst"](LINES) + b"rubbish", "past line 300"),
    ],
)
def test_a_file_that_is_not_packed_as_it_says_is_refused(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    put(tmp_path, name, content)
    with pytest.raises(DataError, match=expected):
        list(jsonl.read(jsonl.Config(path=str(tmp_path))))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_line_that_inflates_beyond_all_bounds_is_passed_over_in_little_memory(
    tmp_path: Path, ending: str
) -> None:
    bomb = PACK[ending](bytes(100 << 20) + b'\n{"text": "after"}\n')
    assert len(bomb) < 1 << 18
    put(tmp_path, f"a.jsonl{ending}", bomb)
    tracemalloc.start()
    try:
        read = list(jsonl.read(jsonl.Config(path=str(tmp_path), max_line_bytes=4 << 20)))
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert [(one.text, one.flaw) for one in read] == [("", "too_large"), ("after", "")]


def test_a_line_made_to_waste_time_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl.zst", PACK[".zst"](b'{"text": "a"}\n' + bytes(100 << 20)))
    with pytest.raises(DataError, match="past line 2: the next one is longer than 100 times"):
        list(jsonl.read(jsonl.Config(path=str(tmp_path), max_line_bytes=1000)))


def test_a_field_can_name_the_documents(tmp_path: Path) -> None:
    names = [b'"x/y.py"', b"7", b"null", b'""', b'"\\ud800"']
    content = b"".join(b'{"body": "a", "name": %s}\n' % name for name in names)
    read = lines_of(tmp_path, content, text_field="body", path_field="name")
    assert paths(read) == ["x/y.py", "7", "a.jsonl:3", "a.jsonl:4", "?"]


def test_a_folder_and_a_glob_of_lines_are_read_in_order_up_to_the_asked_number(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/c.ndjson", "a/d.txt"):
        put(tmp_path, name, b'{"text": "1"}\n{"text": "2"}\n')
    config = jsonl.Config(path=str(tmp_path), max_documents=3)
    assert paths(jsonl.read(config)) == ["a/c.ndjson:1", "a/c.ndjson:2", "b.jsonl:1"]
    assert paths(jsonl.read(jsonl.Config(path=f"{tmp_path}/*.jsonl"))) == ["b.jsonl:1", "b.jsonl:2"]


def test_a_name_with_brackets_is_a_name_before_it_is_a_pattern(tmp_path: Path) -> None:
    put(tmp_path, "part[1].jsonl", b'{"text": "a"}\n')
    assert paths(jsonl.read(jsonl.Config(path=f"{tmp_path}/part[1].jsonl"))) == ["part[1].jsonl:1"]


# Parquet


def put_table(path: Path, columns: dict[str, object], **settings: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **settings)


def rows_of(path: Path, **settings: object) -> list[Document]:
    return list(parquet.read(parquet.Config(path=str(path), **settings)))


def test_rows_of_several_files_and_row_groups_come_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        texts = [f"{name} {i}" for i in range(25)]
        put_table(tmp_path / f"{name}.parquet", {"other": texts, "text": texts}, row_group_size=10)
    read = rows_of(tmp_path, batch_rows=7)
    assert paths(read) == [f"{name}.parquet:{i}" for name in "ab" for i in range(25)]
    assert [one.text for one in read] == [f"{name} {i}" for name in "ab" for i in range(25)]
    assert read[0] == dataclasses.replace(document("a 0"), path="a.parquet:0")


def test_a_row_that_gives_no_text_is_set_aside_and_the_next_is_read(tmp_path: Path) -> None:
    column = pa.array([b"a", None, "café".encode("latin-1"), b"x" * 11, b"", b"\0"])
    put_table(tmp_path / "a.parquet", {"text": column.view(pa.string())})
    read = rows_of(tmp_path, max_bytes=10)
    assert [one.flaw for one in read] == ["", "no_text", "not_utf8", "too_large", "", ""]
    assert [one.text for one in read] == ["a", "", "", "", "", "\0"]


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_every_type_of_text_column_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    put_table(
        tmp_path / "a.parquet", {"text": pa.array(["é", None, "b", "é"]).cast(kind), "id": [1, 2, 3, None]}
    )
    read = rows_of(tmp_path, path_field="id")
    assert [one.text for one in read] == ["é", "", "b", "é"]
    assert paths(read) == ["1", "2", "3", "a.parquet:3"]


def test_a_column_without_any_text_is_set_aside_row_by_row(tmp_path: Path) -> None:
    put_table(tmp_path / "a.parquet", {"text": pa.nulls(3)})
    assert [one.flaw for one in rows_of(tmp_path)] == ["no_text"] * 3


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"text_field": "body"}, "has 0 columns 'body', not one; there are text, id, nested"),
        ({"text_field": "id"}, "column 'id' of .*a.parquet holds int64"),
        ({"text_field": "nested"}, "column 'nested' of .*a.parquet holds struct"),
        ({"path_field": "nested"}, "column 'nested' of .*a.parquet holds struct"),
    ],
)
def test_a_wrong_column_is_answered_with_what_is_there(
    tmp_path: Path, settings: dict[str, str], expected: str
) -> None:
    put_table(tmp_path / "a.parquet", {"text": ["a"], "id": [1], "nested": [{"text": None}]})
    with pytest.raises(ConfigError, match=expected):
        rows_of(tmp_path, **settings)


def test_a_parquet_file_that_is_cut_or_changed_is_refused(tmp_path: Path) -> None:
    texts = [f"{i} {i * 7919}" for i in range(3000)]
    place = tmp_path / "a.parquet"
    put_table(place, {"text": texts}, write_page_checksum=True, row_group_size=1000)
    whole = place.read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], b"PAR1", b'{"text": "a"}\n', flipped(whole, 9000)):
        place.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.parquet: cannot be read past row \d+"):
            rows_of(tmp_path)


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


# Repositories of `datasets`

CARD = """---
configs:
- config_name: small
  default: true
  data_files:
  - {split: train, path: data/train-*.parquet}
  - {split: test, path: data/test.parquet}
- config_name: other
  data_files: other/*.parquet
---
# A corpus
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as it lies on the hub: a card with two configurations, and files for each."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    root = tmp_path / "corpus"
    put(root, "README.md", CARD.encode())
    put_table(root / "data/train-0.parquet", {"text": ["a", None], "id": [1, 2]})
    put_table(root / "data/train-1.parquet", {"text": ["c"], "id": [3]})
    put_table(root / "data/test.parquet", {"text": ["t"], "id": [4]})
    put_table(root / "other/any.parquet", {"body": ["o"]})
    return root


def repository_of(path: Path | str, **settings: object) -> list[Document]:
    return list(huggingface.read(huggingface.Config(path=str(path), **settings)))


def test_a_repository_is_read_by_configuration_split_and_column(repository: Path) -> None:
    read = repository_of(repository)
    assert [(one.path, one.text, one.flaw) for one in read] == [
        ("train:0", "a", ""),
        ("train:1", "", "no_text"),
        ("train:2", "c", ""),
    ]
    assert paths(repository_of(repository, split="test", path_field="id")) == ["4"]
    assert [one.text for one in repository_of(repository, name="other", text_field="body")] == ["o"]
    assert len(repository_of(repository, max_documents=2)) == 2


def test_a_repository_of_json_lines_needs_no_card(tmp_path: Path) -> None:
    put(tmp_path, "corpus/train.jsonl", b'{"text": "a", "n": 1}\n{"n": 2}\n')
    assert [one.flaw for one in repository_of(tmp_path / "corpus")] == ["", "no_text"]


def test_reading_a_repository_leaves_nothing_behind(repository: Path) -> None:
    import datasets

    before = datasets.config.HF_DATASETS_CACHE.exists()
    repository_of(repository)
    partly = huggingface.read(huggingface.Config(path=str(repository)))
    next(partly)
    del partly
    assert list((repository.parent / "scratch").iterdir()) == []
    assert datasets.config.HF_DATASETS_CACHE.exists() == before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "large"}, "'large' not found. Available: .*'small', 'other'"),
        ({"split": "dev"}, "Bad split: dev. Available splits: .*'train', 'test'"),
        ({"text_field": "body"}, "has 0 columns 'body', not one; there are text, id"),
        ({"text_field": "id"}, "column 'id' of .* holds int64"),
        ({"revision": "main"}, "is a folder and has no revision 'main'"),
    ],
)
def test_a_wrong_part_of_a_repository_is_answered_with_what_is_there(
    repository: Path, settings: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        repository_of(repository, **settings)


def test_a_name_on_the_hub_is_not_reached_unasked() -> None:
    with pytest.raises(ConfigError, match="set HF_HUB_OFFLINE=0 in the environment"):
        repository_of("owner/corpus")


@pytest.mark.parametrize("path", ["json", "./nowhere", "a/b/c"])
def test_what_is_neither_a_folder_nor_a_name_on_the_hub_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="neither a folder with files nor a name on the hub"):
        repository_of(path)


def test_code_in_a_repository_is_refused_and_not_run(repository: Path) -> None:
    put(repository, "corpus.py", f"open({str(repository / 'ran')!r}, 'w')".encode())
    with pytest.raises(ConfigError, match="scripts are no longer supported"):
        repository_of(repository)
    assert not (repository / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("train.parquet", b"PAR1 and no more", DataError),
        ("train.jsonl", b'{"text": "a"}\n{"text": "cut', DataError),
        ("train.jsonl", b"", DataError),
        ("train.jsonl.gz", PACK[".gz"](LINES)[:-100], DataError),
        ("train.jsonl.zst", PACK[".zst"](LINES), ConfigError),
    ],
)
def test_a_damaged_file_of_a_repository_is_never_read_short(
    tmp_path: Path, name: str, content: bytes, error: type[Exception]
) -> None:
    put(tmp_path, f"corpus/{name}", content)
    with pytest.raises(error):
        repository_of(tmp_path / "corpus")


# Mixtures


def mixture_of(**parts: dict[str, object]) -> mixture.Config:
    return mixture.Config.model_validate({"parts": parts})


def test_each_document_of_a_mixture_knows_its_part(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", b'{"text": "same"}\n{"text": "b"}\nbad\n')
    put(tmp_path, "c.txt", b"same")
    lines = {"kind": "jsonl", "path": str(tmp_path)}
    config = mixture_of(z_lines=lines, files={"kind": "directory", "path": str(tmp_path)})
    read = list(mixture.read(config))
    assert [one.source for one in read] == ["z_lines"] * 3 + ["files"]
    assert [one.flaw for one in read] == ["", "", "not_json", ""]
    assert read[0].key == read[3].key
    assert mixture.Config.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"only": "python_stdlib"}, "at least 2 items"),
        ({"a": "python_stdlib", "B c": "python_stdlib"}, "should match pattern"),
        ({"a": "python_stdlib", "b": "jsonn"}, "did you mean 'jsonl'"),
        ({"a": "python_stdlib", "b": {"kind": "jsonl"}}, "Field required"),
        (
            {
                "a": "python_stdlib",
                "b": {"kind": "mixture", "parts": {"c": "python_stdlib", "d": "python_stdlib"}},
            },
            "part 'b' is a mixture itself",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(parts: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        mixture_of(**parts)


# All of them


@pytest.fixture
def memory() -> Iterator[str]:
    """A folder of a store that is not on the disk."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    fsspec.filesystem("memory").rm(url, recursive=True)


@pytest.mark.parametrize("kind", ["directory", "jsonl", "parquet", "huggingface"])
def test_a_source_reads_the_same_from_a_store_as_from_the_disk(
    tmp_path: Path, memory: str, kind: str
) -> None:
    for name in "ab":
        put(tmp_path, f"{name}.txt", name.encode())
        put(tmp_path, f"lines/{name}.jsonl.zst", PACK[".zst"](LINES + name.encode()))
        put_table(tmp_path / f"rows/{name}.parquet", {"text": [name, None]})
    put(tmp_path, "rows/README.md", b"---\nlicense: mit\n---\n")
    folder = {"directory": "", "jsonl": "lines", "parquet": "rows", "huggingface": "rows"}[kind]
    for path in storage.walk(str(tmp_path)):
        storage.write_bytes(f"{memory}/{path}", (tmp_path / path).read_bytes())
    source = plugins.load("components.data.sources", kind)
    here, there = (
        list(source.read(source.Config(path=f"{root}/{folder}".rstrip("/")))) for root in (tmp_path, memory)
    )
    assert here == there
    assert len(here) >= 2


@pytest.mark.parametrize("kind", ["directory", "jsonl", "parquet"])
@pytest.mark.parametrize("below", ["nowhere", "", "*.no"])
def test_a_source_without_files_says_what_it_looked_for_and_where(
    tmp_path: Path, kind: str, below: str
) -> None:
    put(tmp_path, "a.csv", b"x")
    source = plugins.load("components.data.sources", kind)
    with pytest.raises(
        ConfigError, match=rf"nothing at {tmp_path}.* matches \S+.*; there are (no files|1 others)"
    ):
        list(source.read(source.Config(path=f"{tmp_path}/{below}".rstrip("/"))))


@pytest.mark.parametrize("kind", ["directory", "jsonl", "parquet", "huggingface"])
def test_a_source_is_told_where_to_read(kind: str) -> None:
    with pytest.raises(ConfigError, match="Field required"):
        configure("laptop", [f"data.source.kind={kind}"])
    run, _ = configure("laptop", [f"data.source.kind={kind}", "data.source.path=s3://bucket/raw"])
    assert plugins.name_of(run.data.source) == kind
