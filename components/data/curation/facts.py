"""What is measured of a document, once; every rule and expectation reads these figures, never the text."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from components.data.document import Document

CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")


@dataclass(frozen=True, slots=True)
class Facts:
    """One row of the frame that Great Expectations sees."""

    key: str
    path: str
    sha256: str
    characters: int
    is_text: int
    """1 when the source could decode it and it holds no NUL, else 0."""
    printable_share: float | None
    """Characters that are not control characters; unknown of an empty text."""
    compression_ratio: float | None
    """Bytes per compressed byte: low for noise, high for a phrase said again and again."""
    secrets: int = 0
    """Keys and tokens found."""
    personal: int = 0
    """Addresses, numbers and accounts of people found."""
    forbidden: int = 0
    """Those of both that the policy keeps out."""


def facts_of(document: Document) -> Facts:
    """Measure a document; what is private in it is looked for later, in what the other rules keep."""
    text = document.text
    content = text.encode(errors="replace")
    return Facts(
        key=document.key,
        path=document.path,
        sha256=document.sha256,
        characters=len(text),
        is_text=int(not document.flaw and "\0" not in text),
        printable_share=1 - len(CONTROL.findall(text)) / len(text) if text else None,
        compression_ratio=len(content) / len(zlib.compress(content, level=1)) if text else None,
    )
