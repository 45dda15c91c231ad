"""The tensors of a safetensors file as plain bytes: enough to hash and to look for NaN, without torch."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from components.errors import CheckpointCorrupt

EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000)}
"""Of each number format: its bits as an integer type, and the mask that NaN and infinity fill."""


@dataclass(frozen=True)
class Weight:
    """One tensor on disk."""

    name: str
    dtype: str
    content: memoryview

    @property
    def digest(self) -> str:
        """The same digest that was taken of the tensor in memory."""
        return digest_of_bytes(self.content)

    @property
    def num_not_finite(self) -> int:
        """Elements that are NaN or infinite."""
        bits, mask = EXPONENTS[self.dtype]
        values = np.frombuffer(self.content, dtype=bits)
        return int(np.count_nonzero((values & mask) == mask))

    @property
    def num_elements(self) -> int:
        """Elements of the tensor."""
        return len(self.content) // np.dtype(EXPONENTS[self.dtype][0]).itemsize


def digest_of_bytes(content: memoryview | bytes) -> str:
    """XXH3-128: as fast as memory, and one flipped bit changes it; not meant against a forger."""
    return f"xxh3:{xxhash.xxh3_128_hexdigest(content)}"


def read(path: Path) -> Iterator[Weight]:
    """Every tensor of a safetensors file, in the order of the file."""
    try:
        content = memoryview(np.memmap(path, mode="r")).cast("B")  # type: ignore[arg-type]
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(bytes(content[8 : 8 + length]))
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                yield Weight(name, entry["dtype"], content[8 + length + start : 8 + length + end])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CheckpointCorrupt(f"{path.name} is not a safetensors file: {error}") from None
