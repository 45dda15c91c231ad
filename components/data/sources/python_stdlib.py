"""The standard library's own source files: always there, real, and free to read.

Use it for demos and tests: no account, no download. It costs a second for about 700 files and 12 MB. The
corpus differs a little between Python versions, and distributions leave parts of it out, so nothing may rest
on one module or an exact count. Nothing is vendored: files are read from the interpreter that runs.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from components import plugins
from components.data.document import Document, document_of

NOT_THE_LIBRARY = {"site-packages", "dist-packages"}
TESTS = {"test", "tests", "idle_test"}


class Config(plugins.Config):
    """Which files are taken."""

    include_tests: bool = False
    """Take the library's own test suites too, where they are installed."""

    max_documents: int | None = Field(default=None, ge=1)
    """Stop after so many files; None takes all."""


def read(config: Config) -> Iterator[Document]:
    """Each distinct file once, in the order of its path."""
    root = Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    for path in _files(root, NOT_THE_LIBRARY | (set() if config.include_tests else TESTS)):
        document = document_of((root / path).read_bytes(), path)
        if document.sha256 in seen:
            continue
        seen.add(document.sha256)
        yield document
        if len(seen) == config.max_documents:
            return


def _files(root: Path, without: set[str]) -> list[str]:
    """Python files outside some folders, as paths relative to the root, sorted on every file system alike."""
    found = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    return sorted(path.as_posix() for path in found if without.isdisjoint(path.parts))
