"""The sidecar of a tar: where each sample and member lies and what its bytes must be.

A tar can only be read from its start. With `<shard>.index.npy` beside it a reader takes any member with one
read and compares it with the checksum taken when it was written. The manifest holds the SHA-256 of the
sidecar, the sidecar an xxh3 of every member: a chain from one digest down to every byte that is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from components.data import npy
from components.data.tar import MEMBERS, padding
from components.errors import ShardIntegrityError

if TYPE_CHECKING:
    from components.data.tar import Member

SUFFIX = ".index.npy"
MEMBER = np.dtype([("start", "<u8"), ("bytes", "<u4"), ("xxh3", "<u8")])
"""Offset of the content in the tar, its length, its 64-bit xxh3."""
_WHERE = [("key", "S16"), ("offset", "<u8"), ("size", "<u8"), ("tokens", "<u4")]
SAMPLE = np.dtype([*_WHERE, *((kind, MEMBER) for kind in MEMBERS)])
"""Key, offset of the first header, length with headers and padding, token ids; then the members."""

TOKENS = (np.dtype("<u2"), np.dtype("<u4"))
"""Types of token ids."""

Index = NDArray[np.void]
checksum = xxhash.xxh3_64_intdigest
"""What the index holds of a member's content."""


def name_of(shard: str) -> str:
    """The sidecar of a tar."""
    return shard.removesuffix(".tar") + SUFFIX


def to_bytes(rows: Index) -> bytes:
    """The sidecar's content; equal rows are equal bytes."""
    return npy.to_bytes(rows)


def from_bytes(content: bytes, shard: str) -> Index:
    """The rows in a sidecar whose digest agrees; anything but an index is refused all the same."""
    try:
        return npy.from_bytes(content, SAMPLE)
    except ValueError as error:
        raise ShardIntegrityError(f"{name_of(shard)} is no index: {error}", shard=shard) from None


def of_members(members: Iterable[Member], shard: str) -> Index:
    """The index that a tar ought to have, from its members."""
    rows: dict[str, tuple[Any, ...]] = {}
    for key, group in groupby(members, key=lambda member: member.key):
        found = list(group)
        if tuple(member.kind for member in found) != MEMBERS:
            kinds = ", ".join(member.kind for member in found)
            raise ShardIntegrityError(
                f"{shard} holds {kinds or 'nothing'} of sample {key}; a sample is {', '.join(MEMBERS)}",
                shard=shard,
                key=key,
                offset=found[0].header,
            )
        if key in rows:
            raise ShardIntegrityError(
                f"{shard} holds sample {key} twice", shard=shard, key=key, offset=found[0].header
            )
        rows[key] = _row(key, found, shard)
    return np.array(list(rows.values()), dtype=SAMPLE)


def _row(key: str, members: list[Member], shard: str) -> tuple[Any, ...]:
    last = members[-1]
    end = last.start + len(last.content) + len(padding(len(last.content)))
    tokens = len(array_of(members[1].content, shard, key))
    parts = [(member.start, len(member.content), checksum(member.content)) for member in members]
    return (key.encode(), members[0].header, end - members[0].header, tokens, *parts)


def array_of(content: bytes, shard: str, key: str) -> NDArray[np.unsignedinteger]:
    """Token ids in an `.npy` member: one row of 16 or 32 bit numbers, never an object to unpickle."""
    try:
        return npy.from_bytes(content, *TOKENS)
    except ValueError as error:
        raise ShardIntegrityError(
            f"{shard}: {key}.npy holds no token ids: {error}", shard=shard, key=key
        ) from None
