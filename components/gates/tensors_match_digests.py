"""Each tensor on disk is the one that the trainer held in memory: the model's weights, and every rank's part
of the optimizer.

Idea: the digests of files are taken of what was written, those of tensors of what should have been. A write
that went wrong shows here only, and here the tensor has a name. When to use: always. What it costs: one read
of every tensor, as fast as memory gives it; nothing is unpickled that could execute anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from components import plugins
from components.checkpoints import manifest, partitions, weights
from components.checkpoints.manifest import Manifest
from components.judgement import Subject
from components.records import Verdict

WEIGHTS = "model.safetensors"


class Config(plugins.Config):
    """Nothing to set."""


@dataclass
class Found:
    """What was compared, and what differs, one line a tensor."""

    weights: int = 0
    optimizer: int = 0
    not_compared: int = 0
    """fp32 masters that are the model's weights themselves."""
    changed: list[str] = field(default_factory=list)


def check(subject: Subject, config: Config) -> Verdict:
    """Compare all digests of the manifest."""
    content, found = manifest.read(subject.path), Found()
    found.changed += _weights(subject, content, found)
    found.changed += _copies(subject, content, found)
    found.changed += _optimizer(subject, content, found)
    reason = (
        f"{found.weights} weights and {found.optimizer} tensors of the optimizer are as they were in memory"
    )
    if found.not_compared:
        reason += f"; {found.not_compared} masters are the weights themselves"
    if found.changed:
        more = f", and {len(found.changed) - 3} more" if len(found.changed) > 3 else ""
        reason = "; ".join(found.changed[:3]) + more
    return Verdict(
        gate="tensors_match_digests",
        passed=not found.changed,
        reason=reason,
        figures={
            "weights": found.weights,
            "optimizer_tensors": found.optimizer,
            "ranks": len(content.partitions),
            "changed": len(found.changed),
        },
    )


def _weights(subject: Subject, content: Manifest, found: Found) -> Iterator[str]:
    digests = {weight.name: weight.digest for weight in weights.read(subject.path / WEIGHTS)}
    found.weights = len(digests)
    yield from _differences(WEIGHTS, digests, content.tensors)


def _copies(subject: Subject, content: Manifest, found: Found) -> Iterator[str]:
    """The same weights once more, as DeepSpeed would load them; a tied one has two names there."""
    for file, name, weight in partitions.model_weights(subject.path):
        if content.tensors.get(name, weight.digest) != weight.digest:
            yield _changed(file, name)


def _optimizer(subject: Subject, content: Manifest, found: Found) -> Iterator[str]:
    read: dict[str, tuple[dict[str, str], bool]] = {}
    files = partitions.files(subject.path, len(content.partitions)) if content.partitions else []
    for path, wanted in zip(files, content.partitions, strict=True):
        if path.name not in read:
            held = partitions.read(path)
            digests = {name: tensor.digest for name, tensor in held.tensors.items()}
            read[path.name] = digests, held.has_masters
        digests, has_masters = read[path.name]
        here = {
            name: digest for name, digest in wanted.items() if has_masters or not name.startswith("master.")
        }
        found.optimizer += len(here)
        found.not_compared += len(wanted) - len(here)
        yield from _differences(path.name, digests, here)


def _differences(file: str, digests: dict[str, str], wanted: dict[str, str]) -> Iterator[str]:
    for name in sorted(digests.keys() | wanted.keys()):
        if name not in digests:
            yield f"'{name}' is not in {file}"
        elif name not in wanted:
            yield f"'{name}' in {file} was never in the trainer's memory"
        elif digests[name] != wanted[name]:
            yield _changed(file, name)


def _changed(file: str, name: str) -> str:
    return f"'{name}' in {file} differs from what was in memory"
