"""One-dimensional arrays as `.npy`, written and read by hand: a header is compared, never evaluated.

`numpy.load` parses the header as a Python expression, believes the shape it names, opens zip archives by
their first bytes and unpickles objects when allowed. Here a file is the one that `to_bytes` would have
made, or it is refused. The bytes are those of `numpy.save` (format 1.0), which any reader of `.npy` takes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGN = 64
_DIGITS = 21
"""The header keeps room for a count of so many digits, so its length depends on the type alone."""


def to_bytes(array: NDArray[Any]) -> bytes:
    """The file of a one-dimensional array; equal arrays are equal bytes."""
    assert array.ndim == 1, "arrays here are rows of numbers or records"
    return _header(array.dtype, len(array)) + array.tobytes()


def from_bytes(content: bytes, *dtypes: np.dtype[Any]) -> NDArray[Any]:
    """The array in a file of one of the types, read-only and without a copy; ValueError for anything else."""
    for dtype in dtypes:
        start = len(_header(dtype, 0))
        count = max(len(content) - start, 0) // dtype.itemsize
        if content[:start] == _header(dtype, count) and len(content) == start + count * dtype.itemsize:
            return np.frombuffer(content, dtype, offset=start)
    known = " or ".join(str(dtype) for dtype in dtypes)
    raise ValueError(f"{len(content)} bytes that start with {content[:80]!r} are no row of {known}")


@lru_cache(maxsize=1 << 14)
def _header(dtype: np.dtype[Any], count: int) -> bytes:
    described = repr(dtype.str if dtype.names is None else dtype.descr)
    text = f"{{'descr': {described}, 'fortran_order': False, 'shape': ({count},), }}"
    text += " " * (_DIGITS - len(str(count)))
    size = len(_MAGIC) + 2 + len(text) + 1
    text += " " * (-size % _ALIGN) + "\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode()
