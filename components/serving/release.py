"""A release: a folder of weights that never changes, known by the digest of the file that lists it.

    model.safetensors  config.json  tokenizer.json  tokenizer_config.json  generation_config.json
    release.json       digests of all of the above, the checkpoint they came from, the engine's flags

`release.json` is written last and its SHA-256 is the release's digest.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from components import storage
from components.errors import ServingError
from components.records import Artifact

MANIFEST = "release.json"


class Entry(BaseModel):
    """One file of a release."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str
    bytes: int


class Release(BaseModel):
    """What `release.json` says. It holds no time, so the same checkpoint makes the same release."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    source: Artifact
    """The checkpoint that was exported."""
    step: int
    precision: str
    model: str
    """Name that requests ask for."""
    max_model_len: int
    vocab_size: int
    engine_flags: tuple[str, ...]
    """How the engine must be started, apart from what depends on the machine."""
    files: dict[str, Entry]


def digest(folder: Path) -> str:
    """The release's digest."""
    return storage.sha256_of_file(folder / MANIFEST)


def entries(folder: Path) -> dict[str, Entry]:
    """Digest and size of every file, apart from the manifest itself."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    return {
        p.relative_to(folder).as_posix(): Entry(sha256=storage.sha256_of_file(p), bytes=p.stat().st_size)
        for p in files
    }


def read(folder: Path) -> Release:
    """What the manifest says, unchecked."""
    if not (folder / MANIFEST).is_file():
        raise ServingError(
            f"{folder} is no release: it has no {MANIFEST}; export one with `stanchion run deploy`"
        )
    return Release.model_validate_json((folder / MANIFEST).read_bytes())


def verify(folder: Path, expected_digest: str | None = None) -> Release:
    """The release, once every byte has been found as it was written."""
    release = read(folder)
    if expected_digest is not None and (found := digest(folder)) != expected_digest:
        raise ServingError(
            f"{folder / MANIFEST} has digest {found[:12]}, recorded was {expected_digest[:12]}; "
            "remove the folder and run `stanchion run deploy` again to export it anew"
        )
    found_files = entries(folder)
    for name in sorted(release.files.keys() | found_files.keys()):
        listed, found_entry = release.files.get(name), found_files.get(name)
        if listed != found_entry:
            raise ServingError(
                f"release {folder.name}: {_difference(name, listed, found_entry)}; "
                "remove the folder and run `stanchion run deploy` again to export it anew"
            )
    return release


def _difference(name: str, listed: Entry | None, found: Entry | None) -> str:
    if found is None:
        return f"{name} is missing"
    if listed is None:
        return f"{name} is not in {MANIFEST}"
    if listed.bytes != found.bytes:
        return f"{name} has {found.bytes} bytes, {MANIFEST} says {listed.bytes}"
    return f"{name} has SHA-256 {found.sha256[:12]}, {MANIFEST} says {listed.sha256[:12]}"
