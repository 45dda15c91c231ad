"""Files on their way to an object store, several at once, and a ledger of those that arrived."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from components import storage
from components.contents import Entry
from components.data.writing.pace import Pace

AT_ONCE = 4

logger = logging.getLogger(__name__)


class Ledger:
    """What a store has taken, a line a file: a digest that was sent, under which URL."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._known = set(path.read_text().splitlines()) if path.exists() else set()

    def add(self, url: str, entry: Entry) -> None:
        """Note a file that has arrived."""
        with self._lock, self._path.open("a") as file:
            file.write(_line(url, entry) + "\n")

    def holds(self, url: str, entry: Entry) -> bool:
        """Whether a file was noted, and is still there with its length."""
        if _line(url, entry) not in self._known:
            return False
        try:
            return storage.size(url) == entry.bytes
        except FileNotFoundError:
            return False


def send(folder: Path, url: str, entries: Mapping[str, Entry], ledger: Path) -> list[str]:
    """Upload what the ledger does not hold, and verify the length of each; the names that were sent."""
    noted = Ledger(ledger)
    sent: list[str] = []
    pace = Pace("uploaded", len(entries), "files")

    def one(name: str, entry: Entry) -> None:
        place = storage.join(url, name)
        if not noted.holds(place, entry):
            storage.put_file(folder / name, place)
            noted.add(place, entry)
            sent.append(name)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        uploads = {threads.submit(one, name, entry): entry for name, entry in entries.items()}
        try:
            for upload in as_completed(uploads):
                upload.result()
                pace.tell(bytes=uploads[upload].bytes)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return sorted(sent)


def _line(url: str, entry: Entry) -> str:
    return json.dumps([url, entry.sha256, entry.bytes])
