"""Documents of lost shards, read again from the source that they came from the first time.

Where the index of a shard is whole it names them. Where tar and index are both lost they are what no other
index names and nobody set aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from components import plugins, storage
from components.data.document import Document
from components.data.manifest import Manifest, Shard
from components.data.spool import Spool
from components.errors import DataError, ShardIntegrityError

SOURCES = "components.data.sources"
SET_ASIDE = "set_aside.jsonl"
AGAIN = "nothing was replaced; build the whole data set again with `stanchion run shard_dataset`"
Named = tuple[str, str]
"""Key and source of a document."""


@dataclass(frozen=True)
class Lost:
    """A shard whose tar has to be written again."""

    shard: Shard
    keys: tuple[str, ...]
    """Of its documents, in order; empty when the index is lost as well."""


def read_again(
    url: str,
    manifest: Manifest,
    lost: list[Lost],
    spool: Spool,
    *,
    keys_elsewhere: Callable[[], set[str]],
) -> tuple[list[Lost], dict[Named, int]]:
    """Put the documents of lost shards into a spool; their keys, and each one's place in the spool.

    `keys_elsewhere` are of the documents in whole shards. DataError when the source lacks one.
    """
    if not all(one.keys for one in lost):
        return _unlisted(url, manifest, lost, spool, keys_elsewhere())
    wanted = {(key, one.shard.source) for one in lost for key in one.keys}
    places: dict[Named, int] = {}
    for document in _documents(manifest):
        name = (document.key, document.source)
        if name in wanted and name not in places:
            places[name] = len(places)
            spool.append(document)
            if len(places) == len(wanted):
                return lost, places
    raise _changed(url, manifest, sorted(key for key, _ in wanted - set(places)))


def _unlisted(
    url: str, manifest: Manifest, lost: list[Lost], spool: Spool, elsewhere: set[str]
) -> tuple[list[Lost], dict[Named, int]]:
    """The same where some shards have no index either.

    Their documents fill the nameless shards in the order of their source, as they did the first time. The
    digests tell whether that was right; it is not when nameless shards are of two splits.
    """
    nameless = [one for one in lost if not one.keys]
    if len({(one.shard.split, one.shard.source) for one in nameless}) > 1:
        names = ", ".join(one.shard.name for one in nameless)
        raise DataError(f"neither tar nor index is left of {names} of {url}, which mix two splits; {AGAIN}")
    wanted = {(key, one.shard.source) for one in lost for key in one.keys}
    passed = set(_set_aside(url, manifest)) | elsewhere
    unnamed: list[str] = []
    places: dict[Named, int] = {}
    for document in _documents(manifest):
        name = (document.key, document.source)
        of_nameless = document.source == nameless[0].shard.source and document.key not in passed
        if name not in places and (name in wanted or of_nameless):
            places[name] = len(places)
            spool.append(document)
            unnamed += [] if name in wanted else [document.key]
    if missing := sorted(key for key, source in wanted if (key, source) not in places):
        raise _changed(url, manifest, missing)
    if len(unnamed) != (needed := sum(one.shard.samples for one in nameless)):
        raise DataError(
            f"neither tar nor index is left of {', '.join(one.shard.name for one in nameless)} of {url}, and "
            f"the source gives {len(unnamed)} documents that might be theirs instead of {needed}; {AGAIN}"
        )
    rest = iter(unnamed)
    named = [
        one if one.keys else replace(one, keys=tuple(next(rest) for _ in range(one.shard.samples)))
        for one in lost
    ]
    return named, places


def _documents(manifest: Manifest) -> Iterator[Document]:
    """What the source gives now, without what it could not read."""
    source = plugins.load(SOURCES, manifest.source.kind)
    found: Iterable[Document] = source.read(source.Config.model_validate(manifest.source.settings))
    return (document for document in found if not document.flaw)


def _set_aside(url: str, manifest: Manifest) -> Iterator[str]:
    """Keys of documents that are in no shard; an exact copy has the key of what was kept."""
    if (entry := manifest.files.get(SET_ASIDE)) is None:
        return
    content = storage.read_bytes(storage.join(url, SET_ASIDE))
    if storage.sha256_of_bytes(content) != entry.sha256:
        raise ShardIntegrityError(f"{SET_ASIDE} of {url} is not what was written; {AGAIN}", shard=SET_ASIDE)
    for line in content.splitlines():
        one: dict[str, Any] = json.loads(line)
        if one["reason"] != "duplicate":
            yield one["key"]


def _changed(url: str, manifest: Manifest, missing: list[str]) -> DataError:
    shown = ", ".join(missing[:10]) + (", ..." if len(missing) > 10 else "")
    return DataError(
        f"source '{manifest.source.kind}' of {url} has changed: it no longer gives {len(missing)} documents "
        f"({shown}); restore it, or {AGAIN}"
    )
