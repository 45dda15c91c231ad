"""What a sealed folder holds, file by file: taken down when it is sealed, compared before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from components import storage

SIGNATURE = ".sig"
"""After the manifest's name: a file that vouches for the manifest, and that no manifest can list."""


class Entry(BaseModel):
    """One file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int


def of(folder: Path, *, manifest: str) -> dict[str, Entry]:
    """Digest and size of every file, by its path in the folder; the manifest itself is left out."""
    return {name: entry(folder / name) for name in _names(folder, manifest)}


def differences(folder: Path, listed: Mapping[str, Entry], *, manifest: str) -> list[str]:
    """What is not as the manifest says: one line a file, its name first."""
    return [f"{name} {problem}" for name, problem in different(folder, listed, manifest=manifest).items()]


def different(folder: Path, listed: Mapping[str, Entry], *, manifest: str) -> dict[str, str]:
    """What is wrong with each file that is not as the manifest says, by its path in the folder."""
    known = ((name, _difference(folder / name, entry, manifest)) for name, entry in sorted(listed.items()))
    extra = {name: f"is not in {manifest}" for name in _names(folder, manifest) if name not in listed}
    return {name: problem for name, problem in known if problem} | extra


def _difference(path: Path, entry: Entry, manifest: str) -> str | None:
    if not path.is_file():
        return "is missing"
    if (size := path.stat().st_size) != entry.bytes:
        return f"has {size} bytes, {manifest} says {entry.bytes}"
    if (found := storage.sha256_of_file(path)) != entry.sha256:
        return f"has SHA-256 {found[:12]}, {manifest} says {entry.sha256[:12]}"
    return None


def entry(path: Path) -> Entry:
    """Digest and size of one file."""
    return Entry(sha256=storage.sha256_of_file(path), bytes=path.stat().st_size)


def _names(folder: Path, manifest: str) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(name for name in names if name not in (manifest, manifest + SIGNATURE))
