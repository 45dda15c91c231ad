"""A damaged shard made again from its source, bit by bit the same, or not at all.

The index names the documents of a tar and the manifest says how their source was read, so a shard that is
lost is read, tokenised and written anew. The manifest's digests decide: what does not come out as it was
first written replaces nothing. An index alone is made from its tar, without the source.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from components import storage
from components.data import cache, index, integrity, tar, tokenizer
from components.data import manifest as manifests
from components.data.encoder import Encoder
from components.data.manifest import Manifest, Shard
from components.data.mending.reread import AGAIN, Lost, read_again
from components.data.shards import Sample, write_shard
from components.data.spool import Spool
from components.errors import ConfigError, DataError

if TYPE_CHECKING:
    from components.data.document import Document

Tell = Callable[[str], None]

logger = logging.getLogger(__name__)


def rebuild(
    url: str, names: list[str] | None = None, *, scratch: Path, tell: Tell = logger.info
) -> list[str]:
    """Make damaged shards of a data set whole; the names of those that were replaced.

    Looks for damage in all shards, or only in `names`. What was damaged is kept in `scratch/quarantine`.
    Raises DataError when a source no longer gives the documents that a shard was made of.
    """
    manifest = manifests.read(url)
    shards = _chosen(url, manifest, names)
    lost: list[Lost] = []
    mended: list[str] = []
    for shard in shards:
        rows, whole_index = _index_of(url, shard)
        if not _holds(url, shard.name, shard.sha256):
            lost.append(Lost(shard, tuple(bytes(key).decode() for key in rows["key"])))
        elif not whole_index:
            _replace(url, shard.index_name, index.to_bytes(rows), scratch)
            tell(f"{shard.index_name}: made again from its tar")
            mended.append(shard.name)
    if lost:
        _from_source(url, manifest, lost, scratch, tell)
    if not storage.is_local(url):
        for shard in shards:
            cache.drop(shard.sha256)
    return sorted([*mended, *(one.shard.name for one in lost)])


def data_set_in(url: str) -> str:
    """The data set at a place: itself, or that of the run which lies there."""
    url = url.rstrip("/")
    inside = storage.join(url, "shards")
    here, there = (storage.exists(storage.join(place, manifests.NAME)) for place in (url, inside))
    return inside if there and not here else url


def scratch_of(url: str) -> Path:
    """Where shards are built again unless somebody says otherwise: beside their data set when it is local."""
    folder = storage.local_path(url).absolute().parent if storage.is_local(url) else Path.cwd()
    return folder / "scratch" / "rebuild"


def _chosen(url: str, manifest: Manifest, names: list[str] | None) -> list[Shard]:
    """Shards that were named, or those in which the check finds a fault."""
    if names is None:
        found = {fault.shard for fault in integrity.faults_of(url)}
        return [one for one in manifest.shards if found & {one.name, one.index_name}]
    known = [one.name for one in manifest.shards]
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(
            f"{url} has no shard {', '.join(unknown)}; give names such as {min(known, default='none')}, "
            "or none for all that are damaged"
        )
    return [one for one in manifest.shards if one.name in names]


def _index_of(url: str, shard: Shard) -> tuple[index.Index, bool]:
    """The rows of a shard, from its index or else from its tar, and whether the index is whole."""
    if _holds(url, shard.index_name, shard.index_sha256):
        return index.from_bytes(_content(url, shard.index_name), shard.name), True
    content = _content(url, shard.name)
    if storage.sha256_of_bytes(content) != shard.sha256:
        return index.of_members((), shard.name), False
    rows = index.of_members(tar.scan(io.BytesIO(content), shard.name), shard.name)
    if storage.sha256_of_bytes(index.to_bytes(rows)) != shard.index_sha256:
        raise DataError(f"the tar of {shard.name} of {url} gives another index than was written; {AGAIN}")
    return rows, False


def _from_source(url: str, manifest: Manifest, lost: list[Lost], scratch: Path, tell: Tell) -> None:
    """Write tars aside from what the source gives now, and put those in place that are as they were."""
    encoder = Encoder(tokenizer.load(tokenizer.fetch(url, manifest, scratch / "tokenizer")))
    tell(f"reads source '{manifest.source.kind}' for {', '.join(one.shard.name for one in lost)}")
    with Spool(scratch / "documents") as spool:
        elsewhere = partial(_keys_elsewhere, url, manifest, {one.shard.name for one in lost if not one.keys})
        lost, places = read_again(url, manifest, lost, spool, keys_elsewhere=elsewhere)
    documents = spool.documents()
    aside = scratch / "shards"
    aside.mkdir(parents=True, exist_ok=True)
    for one in lost:
        found = list(documents.pick(places[key, one.shard.source] for key in one.keys))
        _write(url, one.shard, found, encoder, aside)
    for shard in (one.shard for one in lost):
        for name, sha256 in ((shard.name, shard.sha256), (shard.index_name, shard.index_sha256)):
            if not _holds(url, name, sha256):
                _replace(url, name, aside / name, scratch)
            (aside / name).unlink()
        tell(f"{shard.name}: built again from its source, {shard.samples} documents")
    documents.remove()


def _write(url: str, shard: Shard, documents: list[Document], encoder: Encoder, folder: Path) -> None:
    """Write a shard once more; a DataError when it does not come out as it was."""
    tokens = encoder([document.text for document in documents])
    samples = [Sample(one, shard.split, ids) for one, ids in zip(documents, tokens, strict=True)]
    again = write_shard(folder / shard.name, shard.split, samples, shard.source)
    if again != shard:
        raise DataError(
            f"{shard.name} of {url} comes out with SHA-256 {again.sha256[:12]} and {again.tokens} tokens, "
            f"the manifest says {shard.sha256[:12]} and {shard.tokens}: its documents are there, but the "
            f"source gives them other paths or texts now; {AGAIN}"
        )


def _keys_elsewhere(url: str, manifest: Manifest, without: set[str]) -> set[str]:
    tables = (_index_of(url, shard)[0] for shard in manifest.shards if shard.name not in without)
    return {bytes(key).decode() for table in tables for key in table["key"]}


def _holds(url: str, name: str, sha256: str) -> bool:
    return storage.sha256_of_bytes(_content(url, name)) == sha256


def _content(url: str, name: str) -> bytes:
    try:
        return storage.read_bytes(storage.join(url, name))
    except FileNotFoundError:
        return b""


def _replace(url: str, name: str, whole: bytes | Path, scratch: Path) -> None:
    """Keep what is damaged, outside the data set, for whoever asks why; then put the whole one there."""
    place, damaged = storage.join(url, name), _content(url, name)
    if damaged:
        kept = scratch / "quarantine" / f"{name}.{storage.sha256_of_bytes(damaged)[:12]}"
        storage.write_bytes(str(kept), damaged)
        logger.info("kept the damaged %s as %s", name, kept)
    if isinstance(whole, Path):
        storage.put_file(whole, place)
    else:
        storage.write_bytes(place, whole)
