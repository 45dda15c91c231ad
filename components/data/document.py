"""One text of a corpus, known by its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it came from."""

    key: str
    """Names its members in a shard: unique, and without a dot, because WebDataset cuts names at the first."""

    text: str
    path: str
    """Where its source found it."""

    sha256: str
    """Of the bytes that the source read."""

    flaw: str = ""
    """Why the source could not read it as text; such a document is set aside, not dropped unseen."""

    source: str = ""
    """Which part of a mixture it came from; empty where there is only one source."""


def document_of(content: bytes, path: str) -> Document:
    """The document in some bytes."""
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        return Document(sha256[:16], content.decode(), path, sha256)
    except UnicodeDecodeError:
        return flawed(content, path, "not_utf8")


def flawed(content: bytes, path: str, flaw: str) -> Document:
    """Bytes that hold no text to train on, and why; known by what was read of them."""
    sha256 = hashlib.sha256(content).hexdigest()
    return Document(sha256[:16], "", path, sha256, flaw=flaw)
