"""A finished folder becomes a data set at its place: all at once on a disk, manifest last in a store."""

from __future__ import annotations

import logging
from pathlib import Path

from components import storage
from components.data import manifest as manifests
from components.data.writing import leftovers, uploads
from components.errors import DataError

logger = logging.getLogger(__name__)


def publish(folder: Path, url: str, ledger: Path) -> None:
    """Publish a folder with its manifest; the same data set there already is welcome, another is an error.

    `ledger` notes what a store has taken, so that an interrupted upload sends only what is missing.
    """
    if storage.exists(storage.join(url, manifests.NAME)):
        _compare(folder, url)
    elif storage.is_local(url):
        _move(folder, url)
    else:
        _upload(folder, url, ledger)


def _compare(folder: Path, url: str) -> None:
    if manifests.digest(url) != manifests.digest(str(folder)):
        raise DataError(
            f"{url} already holds another data set, and a published one never changes; "
            f"remove that folder, or start another run with --set edition=WORD"
        )
    logger.info("%s holds this very data set already", url)


def _move(folder: Path, url: str) -> None:
    """On another file system a folder is copied beside its place before it gets its name."""
    place = storage.local_path(url)
    for aside in place.parent.glob(f".{place.name}.*.partial"):
        logger.warning("sweeping %s, which an earlier run left", aside)
        storage.remove(str(aside))
    if place.exists():
        leftovers.make_room(url, wanted=())
        place.rmdir()
    storage.publish_folder(folder, url, last=manifests.NAME)


def _upload(folder: Path, url: str, ledger: Path) -> None:
    content = (folder / manifests.NAME).read_bytes()
    entries = manifests.parse(content, str(folder)).entries()
    leftovers.make_room(url, wanted=entries)
    uploads.send(folder, url, entries, ledger)
    try:
        storage.create_bytes(storage.join(url, manifests.NAME), content)
    except FileExistsError:
        _compare(folder, url)
