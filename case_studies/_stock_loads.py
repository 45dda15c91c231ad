"""What the usual loaders make of one flipped bit: `python -m case_studies._stock_loads CHECKPOINT COUNT
SEED`.

A process of its own, because a flipped bit in a pickle may do anything to the one that opens it. Flips are
tried in turn on every file that holds tensors; one line of JSON each: file, offset, bit, outcome, what
changed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.checkpoints import digests

SUFFIXES = {".safetensors", ".pt"}


def main() -> None:
    """Flip, load, compare, flip back."""
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    whole = {path: load(path) for path in files}
    draw = random.Random(seed)
    for turn in range(count):
        path = files[turn % len(files)]
        offset, bit = draw.randrange(path.stat().st_size), draw.randrange(8)
        flip(path, offset, bit)
        outcome, changed = _outcome(path, whole[path])
        flip(path, offset, bit)
        name = path.relative_to(folder).as_posix()
        line = {"file": name, "offset": offset, "bit": bit, "outcome": outcome, "changed": changed}
        sys.stdout.write(json.dumps(line) + "\n")


def flip(path: Path, offset: int, bit: int) -> None:
    """Change one bit of a file in place; twice is not at all."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def load(path: Path) -> dict[str, str]:
    """A digest of every tensor and the text of every other value, by its place in the file."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return dict(_leaves(load_file(path)))
    import torch

    return dict(_leaves(torch.load(path, weights_only=False, map_location="cpu")))  # as DeepSpeed does


def _outcome(path: Path, whole: dict[str, str]) -> tuple[str, list[str]]:
    """`silent`: loaded without an error, and something changed; `harmless`: nothing did; else `noticed`."""
    try:
        found = load(path)
    except Exception:
        return "noticed", []
    changed = [place for place in whole if found.get(place) != whole[place]]
    return "harmless" if found == whole else "silent", changed


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield place, f"{value.dtype} {tuple(value.shape)} {digests.of_tensor(value)}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield from _leaves(item, f"{place}/{position}")
    elif isinstance(value, str | int | float | bool | None):
        yield place, repr(value)


if __name__ == "__main__":
    main()
