"""The pieces of documents that fill a row of a batch: where each lies, what it says, what it stands for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from components import storage
from components.data import index, tar, tokenizer
from components.data import packing as packings
from components.data.manifest import Shard
from components.data.reader import Reader
from components.data.stream import Origin
from components.errors import ShardIntegrityError, StanchionError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SET_ASIDE = "set_aside.jsonl"
FIRST_TOKENS = 24
"""Of each piece, shown as text."""


@dataclass(frozen=True)
class Piece:
    """Tokens of one document."""

    key: str
    path: str
    """Where its source found it."""
    sha256: str
    row: int
    """Of the shard."""
    offset: int
    """In the tar, of the sample's first header."""
    bytes: int
    members: dict[str, tuple[int, int]]
    """Offset and length of each member's content."""
    document_tokens: tuple[int, int]
    """First of the document's, and the one after the last."""
    document_length: int
    slots: tuple[int, int]
    """Which of the row's slots it fills; a row has one more than it has inputs."""
    text: str
    """Its first tokens."""
    copies: list[dict[str, str]] = field(default_factory=list)
    """Documents that were set aside because they repeat this one, or would leak it."""
    damage: str = ""
    """Why its content cannot be read, where that is so."""


def pieces_of(reader: Reader, origin: Origin) -> list[Piece]:
    """What fills a row, in order."""
    rows = reader.index(origin.shard)
    keys = [reader.key(origin.shard, piece.row) for piece in origin.pieces]
    copies = _copies(reader, set(keys))
    with TemporaryDirectory() as folder:
        learnt = tokenizer.load(tokenizer.fetch(reader.url, reader.manifest, Path(folder)))
    found, slot = [], 0
    for key, piece in zip(keys, origin.pieces, strict=True):
        place = rows[piece.row]
        found.append(
            Piece(
                key=key,
                row=piece.row,
                offset=int(place["offset"]),
                bytes=int(place["size"]),
                members={
                    kind: (int(place[kind]["start"]), int(place[kind]["bytes"])) for kind in tar.MEMBERS
                },
                document_tokens=(piece.start, piece.stop),
                document_length=int(place["tokens"]),
                slots=(slot, slot + len(piece)),
                copies=copies.get(key, []),
                **_content(reader, origin.shard, piece, learnt),
            )
        )
        slot += len(piece)
    return found


def _content(reader: Reader, shard: Shard, piece: packings.Piece, learnt: Tokenizer) -> dict[str, str]:
    """What only the sample itself says; a damaged one still has a place."""
    try:
        facts = json.loads(member(reader, shard, piece.row, "json"))
        ids = index.array_of(member(reader, shard, piece.row, "npy"), shard.name, facts["sha256"])
        path, sha256 = str(facts["path"]), str(facts["sha256"])
    except (StanchionError, FileNotFoundError, ValueError, KeyError, TypeError) as error:
        return {"path": "", "sha256": "", "text": "", "damage": f"{type(error).__name__}: {error}"}
    first = ids[piece.start : min(piece.stop, piece.start + FIRST_TOKENS)].tolist()
    return {"path": path, "sha256": sha256, "text": learnt.decode(first, skip_special_tokens=False)}


def member(reader: Reader, shard: Shard, row: int, kind: str) -> bytes:
    """One member, compared with its checksum; by its range, so that no remote shard is downloaded for it."""
    place = reader.index(shard)[row][kind]
    url = storage.join(reader.url, shard.name)
    content = storage.read_range(url, int(place["start"]), int(place["bytes"]))
    if index.checksum(content) != int(place["xxh3"]):
        raise reader.fault(shard, row, kind, content)
    return content


def _copies(reader: Reader, keys: set[str]) -> dict[str, list[dict[str, str]]]:
    """Documents that were set aside for the sake of these; a data set may have no such list."""
    found: dict[str, list[dict[str, str]]] = {}
    if SET_ASIDE in reader.manifest.files:
        for one in _set_aside(reader, keys):
            if one["of"] in keys:
                found.setdefault(one["of"], []).append(one)
    return found


def _set_aside(reader: Reader, keys: set[str]) -> Iterator[dict[str, str]]:
    """Lines that name one of the keys; only those are parsed, and none is given before all were compared."""
    needles = [key.encode() for key in keys]
    lines = [line for line in set_aside_lines(reader) if any(needle in line for needle in needles)]
    yield from map(json.loads, lines)


def set_aside_lines(reader: Reader) -> Iterator[bytes]:
    """What was set aside, a JSON line each; after the last an error unless the file is what was written."""
    digest = hashlib.sha256()
    with storage.open_read(storage.join(reader.url, SET_ASIDE)) as file:
        for line in file:
            digest.update(line)
            yield line
    if digest.hexdigest() != reader.manifest.files[SET_ASIDE].sha256:
        raise ShardIntegrityError(
            f"{SET_ASIDE} of {reader.url} is not what the manifest vouches for; run "
            f"`stanchion check {reader.url}` for every fault",
            shard=SET_ASIDE,
        )
