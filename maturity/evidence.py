"""What the records say: run records as plain JSON, with the few questions that criteria ask of them.

Reads the format by itself, so that a platform can be scored from its records alone, wherever they lie.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
CASE_STUDY = "case_study."


@dataclass(frozen=True)
class Evidence:
    """Records of any number of runs; their order never matters."""

    records: tuple[Record, ...]

    @classmethod
    def of(cls, records: Iterable[Record]) -> Evidence:
        """Evidence from records, in an order of its own; twice counts once, and a score proves nothing."""
        by_text = {_canonical(record): record for record in records if record.get("stage") != "assess"}
        return cls(tuple(by_text[text] for text in sorted(by_text)))

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the whole evidence: the same digest must give the same scorecard."""
        return hashlib.sha256("\n".join(map(_canonical, self.records)).encode()).hexdigest()

    def stage(self, name: str) -> list[Record]:
        """Records of one stage that ended well."""
        return [one for one in self.records if one.get("stage") == name and one.get("status") == "completed"]

    def attempted(self, name: str) -> bool:
        """Whether a stage has run at all, however it ended."""
        return any(one.get("stage") == name for one in self.records)

    def case_study(self, name: str) -> list[Record]:
        """Records of one case study, however it ended."""
        return [one for one in self.records if one.get("stage") == CASE_STUDY + name]

    def production(self) -> list[Record]:
        """Records of work: whatever is no case study."""
        return [one for one in self.records if not str(one.get("stage", "")).startswith(CASE_STUDY)]

    def makers(self, digest: str) -> list[Record]:
        """Records that list an artifact of this digest among their outputs."""
        return [one for one in self.records if any(a["digest"] == digest for a in outputs(one))]


def read(*folders: str) -> Evidence:
    """Evidence from folders of record files, each a path or any fsspec URL; a missing folder holds none."""
    return Evidence.of(record for folder in folders for record in _records(folder))


def where(record: Record) -> str:
    """How a finding points at a record."""
    return f"{record.get('run_id', '?')}/{record.get('stage', '?')}"


def places(records: Iterable[Record]) -> str:
    """How a finding points at several records."""
    return ", ".join(sorted({where(record) for record in records}))


def inputs(record: Record, name: str | None = None) -> list[Record]:
    """Artifacts that a stage read, all or those of one name."""
    return [a for a in record.get("inputs") or [] if name is None or a["name"] == name]


def outputs(record: Record, name: str | None = None) -> list[Record]:
    """Artifacts that a stage made, all or those of one name."""
    return [a for a in record.get("outputs") or [] if name is None or a["name"] == name]


def verdicts(record: Record) -> list[Record]:
    """What gates said about what the stage made."""
    return list(record.get("verdicts") or [])


def drilled(record: Record, claim: str) -> bool:
    """Whether a case study completed with this verdict passed and none failed."""
    said = {verdict["gate"]: bool(verdict["passed"]) for verdict in verdicts(record)}
    return record.get("status") == "completed" and said.get(claim, False) and all(said.values())


def metrics(record: Record) -> dict[str, Any]:
    """What the stage measured."""
    return dict(record.get("metrics") or {})


def _canonical(record: Record) -> str:
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


def _records(folder: str) -> Iterator[Record]:
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(folder)
    for name in sorted(filesystem.glob(f"{path}/*.json")):
        yield json.loads(filesystem.cat_file(name))
