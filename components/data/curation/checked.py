"""What became of a source's documents: those kept, and each of those set aside with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from components.data.document import Document
from components.records import Verdict

FRAMES = ("documents", "groups", "totals")
"""What Great Expectations is asked about: a sample of documents, groups of all of them, and the totals."""


class Kept(Protocol):
    """Documents that can be counted and read as often as needed: a list, or a spool on disk."""

    def __iter__(self) -> Iterator[Document]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Document: ...


@dataclass(frozen=True, slots=True)
class SetAside:
    """A document left out, and why."""

    key: str
    path: str
    source: str
    sha256: str
    reason: str
    of: str = ""
    """Key of the document that it repeats, or key or evaluation set of what it would leak."""


@dataclass(frozen=True)
class Checked:
    """What became of a source's documents."""

    kept: Kept
    set_aside: list[SetAside]
    report: dict[str, Any]
    """`success`; under each of `FRAMES` every expectation with what was observed; and what was set aside."""
    digest: str
    """Of the SHA-256 of every document read, in order."""
    characters: int
    """Read, before anything was set aside."""

    @property
    def documents(self) -> int:
        """Read, before anything was set aside."""
        return len(self.kept) + len(self.set_aside)

    @property
    def reasons(self) -> dict[str, int]:
        """Documents set aside, by reason."""
        return dict(sorted(Counter(one.reason for one in self.set_aside).items()))

    @property
    def verdicts(self) -> list[Verdict]:
        """The suite's answer as the record keeps it."""
        return [_verdict(frame, self.report[frame]) for frame in FRAMES]


def set_aside(document: Document, reason: str, of: str = "") -> SetAside:
    """Leave a document out."""
    return SetAside(document.key, document.path, document.source, document.sha256, reason, of)


def _verdict(frame: str, findings: list[dict[str, Any]]) -> Verdict:
    failed = [_sentence(one) for one in findings if not one["success"]]
    passed = len(findings) - len(failed)
    return Verdict(
        gate=f"{frame}_are_sound",
        passed=not failed,
        reason="; ".join(failed) or f"all {passed} expectations hold",
        figures={"expectations": len(findings), "successful": passed},
    )


def _sentence(finding: dict[str, Any]) -> str:
    return f"{finding['column']} {finding['expectation']}: {finding['observed']}".strip()
