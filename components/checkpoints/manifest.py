"""What a checkpoint says of itself: its files and tensors by digest, and what is needed to go on from it.

    step-000400/
      model.safetensors config.json tokenizer.json ...   what transformers and vLLM load
      deepspeed/                                         weights and optimizer partitions, for exact resume
      random/                                            generators of every rank
      manifest.json.sig                                  who wrote it, where a key is configured, see `sign`
      manifest.json                                      written last
    step-000400.state.json                               how far it has come, see `state`

Pattern: Sealed Checkpoint
Problem: a flipped bit, a missing shard or a crash while saving loads without an error and is trained on.
Answer: digest every tensor in memory before it is written, then every file, and write that manifest last;
nothing is unpickled before the files match it, nothing is used before the tensors do.
Trade-off: each save reads its bytes twice more, and each load once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from components import contents, storage
from components.checkpoints import locate, sign
from components.contents import Entry
from components.data.position import Position
from components.errors import CheckpointCorrupt

NAME = "manifest.json"
SIGNATURE = NAME + contents.SIGNATURE


class HeldOut(BaseModel):
    """The loss of exactly these weights, with all that is needed to compute it again."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    loss: float
    """Mean nats a token."""
    sequences: int
    sequence_length: int
    precision: str
    """`bf16` or `fp32`: weights and activations."""
    device: str
    threads: int
    arithmetic: str = ""
    """Torch's version and the processor: with another one, the last bits are others."""


class Manifest(BaseModel):
    """A checkpoint's table of contents and birth certificate."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    schema_version: Literal[2] = 2
    stage: str
    step: int
    """Optimizer steps taken."""
    data_position: Position | None = None
    """Which order of samples was read, and how far; None for a stage that reads no token stream."""
    world_size: int
    """Ranks that wrote it."""
    held_out: HeldOut
    shards: str
    """Where the data set lies that it was trained on."""
    shards_digest: str
    config_digest: str
    code_digest: str = ""
    """Of the sources of Stanchion that ran, see `provenance.code_digest`."""
    facts: dict[str, Any] = {}
    """What the stage wants to remember beside: JSON only."""

    files: dict[str, Entry] = {}
    tensors: dict[str, str] = {}
    """Digest of each tensor of model.safetensors, taken in memory."""
    partitions: list[dict[str, str]] = []
    """For each rank: digests of the fp32 masters and optimizer moments that it holds, taken in memory."""

    @property
    def held_out_loss(self) -> float:
        """Mean nats a held-out token."""
        return self.held_out.loss


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder."""
    return read_at(str(folder))[0]


def read_at(checkpoint: str) -> tuple[Manifest, str]:
    """The manifest of a checkpoint anywhere, and its digest; where there is a key, only if it signed it."""
    url = storage.join(checkpoint, NAME)
    try:
        content = storage.read_bytes(url)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointCorrupt(
            f"{url} is missing: the checkpoint was never finished; use an earlier one"
        ) from None
    refuse_unless_signed(checkpoint, content)
    try:
        return Manifest.model_validate_json(content), storage.sha256_of_bytes(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CheckpointCorrupt(f"{url} is not a manifest: {where}: {first['msg']}") from None


def refuse_unless_signed(checkpoint: str, content: bytes | None = None) -> None:
    """NotSigned when a key is configured and did not sign the manifest, which may be at hand already."""
    if not sign.is_on():
        return
    url, signature = storage.join(checkpoint, NAME), storage.join(checkpoint, SIGNATURE)
    if content is None:
        if not storage.exists(url):
            return  # never finished, which is for others to say
        content = storage.read_bytes(url)
    signed = storage.read_bytes(signature) if storage.exists(signature) else None
    sign.refuse_unless_signed(content, signed, url)


def digest(folder: Path) -> str:
    """The digest of a checkpoint: SHA-256 of its manifest, which holds the digests of all the rest."""
    return storage.sha256_of_file(folder / NAME)


def seal(folder: Path, draft: Manifest, files: dict[str, Entry] | None = None) -> Manifest:
    """Write the manifest, last; `files` were hashed while they were written, else all that is there is."""
    entries = contents.of(folder, manifest=NAME) if files is None else dict(sorted(files.items()))
    sealed = draft.model_copy(update={"files": entries})
    content = (sealed.model_dump_json(indent=1) + "\n").encode()
    if sign.is_on():
        storage.write_bytes(str(folder / SIGNATURE), sign.signature(content))
    storage.write_bytes(str(folder / NAME), content)
    return sealed


def differences(folder: Path, manifest: Manifest) -> list[str]:
    """What is not as the manifest says: one line a file, its name first, its tensors last."""
    found = contents.different(folder, manifest.files, manifest=NAME)
    return [f"{name} {problem}{_tensors(folder, name, manifest)}" for name, problem in found.items()]


def _tensors(folder: Path, name: str, manifest: Manifest) -> str:
    if name not in manifest.files or not (folder / name).is_file():
        return ""
    damage = locate.damage(folder, name, manifest.tensors, manifest.partitions)
    return f" ({damage})" if damage else ""
