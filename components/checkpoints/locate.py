"""Which tensors of a damaged file are not those that were saved, found without executing any of it.

The digest of a file says that it differs; those of its tensors, taken in memory before it was written, where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from components.checkpoints import partitions, weights
from components.errors import CheckpointCorrupt

WEIGHTS = "model.safetensors"
SHOWN = 3


@dataclass(frozen=True)
class Damage:
    """What a look into a file found."""

    tensors: list[str] = field(default_factory=list)
    """Names, as in the manifest; in the order of the manifest."""
    readable: bool = True
    """False where the file's own table of contents is damaged: then it holds none of its tensors."""

    def __str__(self) -> str:
        """A clause to follow the name of the file; empty for a file that holds no tensors."""
        names = ", ".join(f"'{name}'" for name in self.tensors[:SHOWN])
        more = f" and {len(self.tensors) - SHOWN} more" if len(self.tensors) > SHOWN else ""
        if not self.readable:
            return f"its table of contents is damaged, and with it are lost {names}{more}"
        if not self.tensors:
            return "no tensor in it differs from what was saved, what is around them does"
        return f"{names}{more} {'differs' if len(self.tensors) == 1 else 'differ'} from what was saved"


def damage(
    folder: Path, name: str, tensors: Mapping[str, str], held: Sequence[Mapping[str, str]]
) -> Damage | None:
    """Of one file of a checkpoint, by the digests of its manifest; None for a file that holds no tensors.

    `tensors` are the model's, `held` those of each rank's optimizer.
    """
    path = folder / name
    if path.suffix not in (".pt", ".safetensors"):
        return None
    optimizer = _optimizer_in(path, folder, held)
    has_weights = name == WEIGHTS or path.name.endswith("model_states.pt")
    wanted = {**(tensors if has_weights else {}), **optimizer}
    try:
        found = _found(path, has_optimizer=bool(optimizer))
    except CheckpointCorrupt:
        return Damage(list(wanted), readable=False)
    if name == WEIGHTS and found.keys() != wanted.keys():
        return Damage(list(wanted), readable=False)
    return Damage([name for name, digest in wanted.items() if found.get(name, digest) != digest])


def _optimizer_in(path: Path, folder: Path, held: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The digests of the rank whose optimizer a file holds; none for another file."""
    try:
        files = partitions.files(folder, len(held))
    except CheckpointCorrupt:  # another rank's file is missing too, which has a line of its own
        return {}
    return next((held[rank] for rank, file in enumerate(files) if file == path), {})


def _found(path: Path, *, has_optimizer: bool) -> dict[str, str]:
    """Digests of what is there now."""
    if path.name == WEIGHTS:
        return {weight.name: weight.digest for weight in weights.read(path)}
    found = {name: weight.digest for name, weight in partitions.weights_in(path)}
    if has_optimizer:
        found |= {name: tensor.digest for name, tensor in partitions.read(path).tensors.items()}
    return found
