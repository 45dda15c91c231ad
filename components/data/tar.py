"""The only tar that is written or read here: regular files with plain names, fixed headers, nothing else.

A general tar reader takes a damaged header for the end of the archive, follows links and believes sizes. This
one knows three members a sample and refuses every byte that its own writer would not have written, so that a
shard from anywhere can be opened: nothing is extracted, unpickled, or executed by the name of a member.
Reference: POSIX.1-1988 "ustar", which every tar tool and `webdataset.WebDataset` reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from components.errors import DataError, ShardIntegrityError

BLOCK = 512
RECORD = 20 * BLOCK
"""Tools expect an archive to be whole records."""
MEMBERS = ("json", "npy", "txt")
"""What a sample consists of, in this order."""
NAME = re.compile(rb"([A-Za-z0-9_-]{1,16})\.(json|npy|txt)")
MAX_MEMBER_BYTES = 1 << 30
MAX_MEMBERS = 3 << 22

_MODE_AND_OWNER = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_AFTER_CHECKSUM = b"0" + bytes(100) + b"ustar\x0000" + bytes(32 + 32 + 8 + 8 + 155 + 12)
_FIXED_SUM = sum(_MODE_AND_OWNER + _TIME + b" " * 8 + _AFTER_CHECKSUM)


class Member(NamedTuple):
    """One file of a tar."""

    key: str
    kind: str
    """Its suffix."""
    header: int
    """Offset of its header in the archive."""
    content: bytes

    @property
    def start(self) -> int:
        """Offset of its content in the archive."""
        return self.header + BLOCK


def header(name: bytes, size: int) -> bytes:
    """The 512 bytes before a member: mode 0644, owner 0, time 0, so equal content is equal bytes.

    DataError for what `scan` would not take back.
    """
    if not NAME.fullmatch(name) or size > MAX_MEMBER_BYTES:
        raise DataError(
            f"a member {name!r} of {size} bytes fits into no shard; KEY.json, KEY.npy and KEY.txt do, KEY "
            f"being 1 to 16 of A-Z a-z 0-9 _ -, with at most {MAX_MEMBER_BYTES} bytes"
        )
    digits = b"%011o\0" % size
    checksum = b"%06o\0 " % (_FIXED_SUM + sum(name) + sum(digits))
    return name.ljust(100, b"\0") + _MODE_AND_OWNER + digits + _TIME + checksum + _AFTER_CHECKSUM


def padding(size: int) -> bytes:
    """Zeros from the end of a content to the next block."""
    return bytes(-size % BLOCK)


def end(size: int) -> bytes:
    """What closes an archive of so many bytes: two empty blocks, then zeros to a whole record."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


def scan(file: BinaryIO, shard: str) -> Iterator[Member]:
    """Every member from the start to the end of the file, or a ShardIntegrityError with its offset."""
    offset = count = 0
    while (head := _read(file, BLOCK, shard, offset)) != bytes(BLOCK):
        count += 1
        if count > MAX_MEMBERS:
            raise _refused(shard, offset, f"more than {MAX_MEMBERS} members")
        name, size = _understood(head, shard, offset)
        content = _read(file, size, shard, offset + BLOCK)
        pad = padding(size)
        if _read(file, len(pad), shard, offset + BLOCK + size) != pad:
            raise _refused(shard, offset, f"bytes after the content of {name.decode()}")
        key, _, kind = name.decode().partition(".")
        yield Member(key, kind, offset, content)
        offset += BLOCK + size + len(pad)
    closing = head + file.read(2 * RECORD)
    if closing != end(offset):
        raise _refused(shard, offset, "something other than the end of an archive follows an empty block")


def _understood(head: bytes, shard: str, offset: int) -> tuple[bytes, int]:
    """Name and size of a member, when this is the very header that the writer would have made."""
    name = head[:100].rstrip(b"\0")
    if not NAME.fullmatch(name):
        raise _refused(shard, offset, f"a member named {name!r}; allowed are KEY.json, KEY.npy, KEY.txt")
    try:
        size = int(head[124:135], 8)
    except ValueError:
        raise _refused(shard, offset, f"a member whose size is {head[124:136]!r}") from None
    if not 0 <= size <= MAX_MEMBER_BYTES:
        raise _refused(shard, offset, f"a member of {size} bytes; at most {MAX_MEMBER_BYTES} are allowed")
    if head != header(name, size):
        raise _refused(shard, offset, f"a header of {name.decode()} that no shard writer made")
    return name, size


def _read(file: BinaryIO, size: int, shard: str, offset: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise _refused(shard, offset, f"its end, {size - len(content)} bytes early")
    return content


def _refused(shard: str, offset: int, found: str) -> ShardIntegrityError:
    return ShardIntegrityError(f"{shard} holds at byte {offset} {found}", shard=shard, offset=offset)
