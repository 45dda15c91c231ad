"""A release: a folder of weights that never changes, known by the digest of the file that lists it.

    model.safetensors  config.json  tokenizer.json  tokenizer_config.json  generation_config.json
    release.json       digests of all of the above, the checkpoint they came from, the engine's flags

`release.json` is written last and its SHA-256 is the release's digest.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from components import contents, storage
from components.contents import Entry
from components.errors import ServingError
from components.records import Artifact

MANIFEST = "release.json"


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
    if different := contents.differences(folder, release.files, manifest=MANIFEST):
        raise ServingError(
            f"release {folder.name}: {'; '.join(different)}; "
            "remove the folder and run `stanchion run deploy` again to export it anew"
        )
    return release
