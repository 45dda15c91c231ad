"""What torch.save wrote, read without executing any of it: no torch, no pickled class, no copy of the bytes.

A pickle names functions to call. Here every name but those of tensors and dictionaries stands for an object
that does nothing, so a file may be looked into before anything has vouched for it, and a damaged one names
the tensor that is damaged.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from components.checkpoints.weights import Weight
from components.errors import CheckpointCorrupt

STORAGES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
"""Torch's storage classes: the name that safetensors gives the number format, and its bytes an element."""
LOCAL_HEADER = 30
"""Bytes of a zip member's own header before its name; its last four are the lengths of name and extra."""


class Inert:
    """Stands for every object whose class is none of our business."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *_: Any, **__: Any) -> Inert:
        return self

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None:
        """What a pickled list would do."""


def read(path: Path) -> Any:
    """The tree that was saved, a `Weight` in place of each tensor.

    CheckpointCorrupt, with the file's name, when it is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (listing,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            places = {info.filename: info for info in archive.infolist()}
            content = memoryview(np.memmap(path, mode="r")).cast("B")  # type: ignore[arg-type]
            reader = _Reader(archive.read(listing), listing.removesuffix("data.pkl"), places, content)
            return reader.load()
    except CheckpointCorrupt as error:
        raise CheckpointCorrupt(f"{path.name}: {error}") from None
    except Exception as error:  # a damaged pickle raises whatever it comes upon
        raise CheckpointCorrupt(
            f"{path.name} is not a file that torch saved: {type(error).__name__}: {error}"
        ) from None


class Plain(dict[Any, Any]):
    """A dictionary, without the attributes that a pickle would give it."""

    def __setstate__(self, state: Any) -> None: ...


class _Reader(pickle.Unpickler):
    def __init__(
        self, listing: bytes, folder: str, places: dict[str, zipfile.ZipInfo], content: memoryview
    ) -> None:
        super().__init__(io.BytesIO(listing))
        self._folder, self._places, self._content = folder, places, content

    def find_class(self, module: str, name: str) -> Any:
        """Tensors and dictionaries; anything else is inert."""
        if module == "torch" and name in STORAGES:
            return name
        known = {
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
            ("collections", "OrderedDict"): Plain,
        }
        return known.get((module, name), Inert)

    def persistent_load(self, saved: Any) -> tuple[str, int, memoryview]:
        """A storage: number format, bytes an element, content."""
        _, kind, key, _, count = saved
        dtype, size = STORAGES[kind]
        info = self._places[f"{self._folder}data/{key}"]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != count * size:
            raise CheckpointCorrupt(f"storage {key} has {info.file_size} bytes, {count * size} were saved")
        lengths = self._content[info.header_offset + LOCAL_HEADER - 4 : info.header_offset + LOCAL_HEADER]
        name, extra = (int.from_bytes(lengths[at : at + 2], "little") for at in (0, 2))
        start = info.header_offset + LOCAL_HEADER + name + extra
        return dtype, size, self._content[start : start + info.file_size]


def _tensor(
    storage: tuple[str, int, memoryview],
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    *_: Any,
) -> Weight:
    dtype, size, content = storage
    if stride != _contiguous(shape):
        raise CheckpointCorrupt(
            f"a tensor of shape {shape} has stride {stride}; only contiguous ones are saved"
        )
    return Weight("", dtype, content[offset * size : (offset + math.prod(shape)) * size])


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
