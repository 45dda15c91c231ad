"""One loader in a process of its own: it is told what to do a line at a time, and answers with figures.

Runs in the environment of a peer, so it needs the standard library alone:

    python -m case_studies.benchmarks.measure '{"peer": "webdataset_tar", "folder": "...", "workers": 0}'

A process stays up for all epochs of one mode, so imports and first-time set-up are in no figure, and the
driver can let loaders take turns. Only the first epoch digests the texts; the timed ones just count them.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from case_studies.benchmarks import corpus

BATCH = 64
PLACE = 0.9
"""Where in an epoch a run is stopped and resumed."""
Batches = Iterator[list[str]]


class Loader(Protocol):
    """A reader of what a peer built; every epoch is shuffled anew."""

    def samples(self, epoch: int) -> Iterable[str]:
        """The texts one by one, in this process, by the peer's quickest way."""

    def batches(self, epoch: int) -> Batches:
        """The texts in batches, from worker processes if there are any."""

    def state(self, batches_done: int) -> Any:
        """What a checkpoint would hold after that many batches of the epoch that is being read, as JSON."""

    def resume(self, state: Any) -> Batches:
        """The batches that follow a state, to the end of its epoch."""


class Peer(Protocol):
    """A file of `peers/`."""

    PACKAGES: tuple[str, ...]
    """What its own environment holds; none for what needs only the standard library, or is ours."""

    def build(self, documents: Iterable[str], folder: Path, *, shard_bytes: int) -> None:
        """Write the documents in the peer's format."""

    def ready(self) -> None:
        """Import what reading needs."""

    def open_folder(self, folder: Path, *, workers: int, verify: bool) -> Loader:
        """A loader of them; `verify` asks for whatever checks the peer has."""


def main() -> None:
    """Obey lines of JSON until there are no more."""
    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a peer may print what it likes: that goes to the log
    peer: Any = importlib.import_module(f"case_studies.benchmarks.peers.{settings['peer']}")
    worker = Measured(peer, Path(settings["folder"]), settings["workers"], settings["verify"])
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(worker, command.pop("do"))(**command)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Measured:
    """A peer under measurement."""

    def __init__(self, peer: Peer, folder: Path, workers: int, verify: bool) -> None:
        self.peer, self.folder, self.workers, self.verify = peer, folder, workers, verify
        self._loader: Loader | None = None

    def build(self, documents: str, shard_bytes: int) -> dict[str, Any]:
        """Write the corpus; seconds, and bytes on disk."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        self.peer.build(corpus.read(Path(documents)), self.folder, shard_bytes=shard_bytes)
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return {
            "seconds": time.perf_counter() - wall,
            "cpu_seconds": _cpu_seconds() - cpu,
            "bytes": size,
        }

    def check(self, epoch: int) -> dict[str, Any]:
        """Read an epoch and digest it; also what warms up caches and everything made on first use."""
        digest = corpus.Digest()
        if self.workers:
            for batch in self.loader.batches(epoch):
                digest.add(batch)
        else:
            digest.add(self.loader.samples(epoch))
        return {"samples": digest.texts, "digest": digest.hex()}

    def epoch(self, epoch: int) -> dict[str, Any]:
        """Read an epoch and time it."""
        gc.collect()
        loader = self.loader
        sizes: list[int] = []
        wall, cpu = time.perf_counter(), _cpu_seconds()
        if self.workers:
            for batch in loader.batches(epoch):
                sizes += map(len, batch)
        else:
            sizes = list(map(len, loader.samples(epoch)))
        wall = time.perf_counter() - wall
        _await_children()
        return {"samples": len(sizes), "bytes": sum(sizes), "wall": wall, "cpu": _cpu_seconds() - cpu}

    def stop(self, documents: int) -> dict[str, Any]:
        """Read most of an epoch in batches, and hand back what a checkpoint would hold."""
        batches, count = self.loader.batches(1), int(PLACE * documents) // BATCH
        digest = corpus.Digest()
        for _ in range(count):
            digest.add(next(batches))
        state = self.loader.state(count)
        size = len(json.dumps(state))
        return {"state": state, "state_bytes": size, "samples": digest.texts, "total": f"{digest.total:x}"}

    def resume(self, state: Any, samples: int, total: str) -> dict[str, Any]:
        """Seconds from a ready process to the next batch; then whether nothing was lost or read twice."""
        self.peer.ready()
        started = time.perf_counter()
        batches = self.loader.resume(state)
        first = next(batches)
        seconds = time.perf_counter() - started
        digest = corpus.Digest()
        digest.texts, digest.total = samples, int(total, 16)
        digest.add(first)
        for batch in batches:
            digest.add(batch)
        return {"seconds": seconds, "samples": digest.texts, "digest": digest.hex()}

    @property
    def loader(self) -> Loader:
        """The loader, opened when first used."""
        if self._loader is None:
            self._loader = self.peer.open_folder(self.folder, workers=self.workers, verify=self.verify)
        return self._loader


def _await_children() -> None:
    """Only of a worker process that has ended is the time known."""
    while multiprocessing.active_children():
        time.sleep(0.001)


def _cpu_seconds() -> float:
    """Of this process and of those it started that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def identity(batch: list[Any]) -> list[Any]:
    """A batch as the list that it is: no loader is charged for making tensors."""
    return batch


if __name__ == "__main__":
    main()
