"""Each source gives documents in one order, names where each was found, and sets aside what is no text."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from components.data.curation import curate
from components.data.document import Document, document_of
from components.data.sources import python_stdlib

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
