"""Loaders side by side: one corpus, one machine, the same minutes; ours checks what it reads and must win.

    make bench-data BENCH_DOCUMENTS=20000

Each loader has an environment, a process and a build of the same corpus to itself. An untimed epoch proves
that it delivers every text once; then loaders take turns, an epoch each, and ratios are taken within a turn.
Every loader hands over each text as `str`, shuffled, except the floor, which reads lines in order.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from case_studies.benchmarks import corpus, environments, picture, ratios
from case_studies.benchmarks.worker import ROOT, Silent, Worker
from components import plugins, storage
from components.observability.provenance import machine, versions
from components.records import git_commit

SHARD_BYTES = 64 << 20
RESULTS = ROOT / "case_studies" / "results" / "data_loaders"
logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A loader as it is measured."""

    name: str
    peer: str
    title: str
    verify: bool = False
    built_by: str = ""
    """The entry whose files it reads; its own when empty."""
    workers: bool = True
    resumes: bool = True


ENTRIES = (
    Entry("json_lines", "json_lines", "json.loads, in order", workers=False, resumes=False),
    Entry("webdataset", "webdataset_tar", "webdataset"),
    Entry("mds", "mosaic_mds", "mosaicml-streaming"),
    Entry("mds_xxh64", "mosaic_mds", "mosaicml-streaming, xxh64", verify=True, resumes=False),
    Entry("litdata", "litdata_chunks", "litdata"),
    Entry("stanchion", "stanchion_shards", "Stanchion, verified", verify=True),
    Entry("stanchion_unverified", "stanchion_shards", "Stanchion, unverified", built_by="stanchion"),
)


class Bench:
    """One run of the whole comparison, in a folder."""

    def __init__(
        self, folder: Path, *, documents: int, rounds: int, uv: str, entries: tuple[Entry, ...]
    ) -> None:
        self.folder, self.rounds, self.uv, self.entries = folder, rounds, uv, entries
        self.corpus = corpus.write(folder / str(documents) / "corpus.jsonl", documents=documents)
        self.data = folder / str(documents)
        self.loaders: dict[str, dict[str, Any]] = {}

    def run(self) -> dict[str, Any]:
        """Build, prove, time, resume; what came out."""
        started = datetime.now(UTC)
        for entry in self.entries:
            self._attempt(entry, self._build)
        for workers in (0, 2):
            self._take_turns(workers)
        for entry in self.entries:
            if entry.resumes:
                self._attempt(entry, self._resume)
        self._sum_up()
        return {
            "title": "Loaders side by side",
            "corpus": self.corpus,
            "rounds": self.rounds,
            "delivers": "each text once an epoch, as str, shuffled; batches of 64 with workers",
            "loaders": self.loaders,
            "bars": ratios.judged(self.loaders),
            "at": started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - started).total_seconds(), 1),
            "commit": git_commit(),
            "machine": machine(),
            "versions": versions(),
        }

    def _attempt(self, entry: Entry, step: Any) -> None:
        """A peer that cannot be had or hangs is reported so, and stops nobody else."""
        found = self.loaders.setdefault(entry.name, {"title": entry.title, "verified": entry.verify})
        if "absent" in found:
            return
        try:
            step(entry, found)
        except (environments.Absent, Silent) as error:
            logger.warning("%s: %s", entry.title, error)
            found["absent"] = str(error)

    def _build(self, entry: Entry, found: dict[str, Any]) -> None:
        self._python(entry)
        if entry.built_by:
            return
        logger.info("%s: building", entry.title)
        shutil.rmtree(self._files(entry), ignore_errors=True)
        with self._worker(entry, 0) as worker:
            shard_bytes = min(SHARD_BYTES, self.corpus["bytes"] // 4)
            found["build"] = worker.ask(
                "build", documents=str(self.data / "corpus.jsonl"), shard_bytes=shard_bytes
            )

    def _take_turns(self, workers: int) -> None:
        with ExitStack() as stack:
            ready: dict[str, Worker] = {}

            def check(entry: Entry, found: dict[str, Any]) -> None:
                worker = stack.enter_context(self._worker(entry, workers))
                self._prove(entry, worker.ask("check", epoch=1))
                ready[entry.name] = worker

            for entry in self.entries:
                if entry.workers or not workers:
                    logger.info("%s: is every text delivered? (%d workers)", entry.title, workers)
                    self._attempt(entry, check)
            for number in range(self.rounds):
                logger.info("round %d of %d, %d workers", number + 1, self.rounds, workers)
                for entry in self.entries:
                    if entry.name in ready:
                        self._attempt(entry, self._timed(ready[entry.name], workers, 2 + number))

    def _timed(self, worker: Worker, workers: int, epoch: int) -> Any:
        def one(entry: Entry, found: dict[str, Any]) -> None:
            timed = worker.ask("epoch", epoch=epoch)
            epochs = found.setdefault("epochs", {}).setdefault(str(workers), [])
            epochs.append({name: round(value, 6) for name, value in timed.items()})

        return one

    def _resume(self, entry: Entry, found: dict[str, Any]) -> None:
        logger.info("%s: stop at 90%% of an epoch, and go on", entry.title)
        with self._worker(entry, 0) as worker:
            kept = worker.ask("stop", documents=self.corpus["documents"])
        state_bytes = kept.pop("state_bytes")
        with self._worker(entry, 0) as worker:
            resumed = worker.ask("resume", **kept)
        found["resume"] = {
            "seconds": round(resumed["seconds"], 4),
            "state_bytes": state_bytes,
            "exact": resumed["digest"] == self.corpus["digest"],
            "samples": resumed["samples"],
        }

    def _prove(self, entry: Entry, read: dict[str, Any]) -> None:
        if (read["samples"], read["digest"]) != (self.corpus["documents"], self.corpus["digest"]):
            raise Silent(f"{entry.name} delivered {read['samples']} texts that are not those of the corpus")

    def _sum_up(self) -> None:
        for found in self.loaders.values():
            if "absent" in found:
                found.pop("epochs", None)  # half a comparison is none
            found["medians"] = {
                workers: {
                    "samples_per_cpu_second": round(ratios.middle(epochs)),
                    "samples_per_second": round(ratios.middle(epochs, "wall")),
                }
                for workers, epochs in found.get("epochs", {}).items()
            }

    def _files(self, entry: Entry) -> Path:
        return self.data / (entry.built_by or entry.name)

    def _python(self, entry: Entry) -> Path:
        packages = plugins.load("case_studies.benchmarks.peers", entry.peer).PACKAGES
        return environments.python_of(packages, self.folder / "environments", self.uv)

    def _worker(self, entry: Entry, workers: int) -> Worker:
        log = self.folder / "logs" / f"{entry.name}.log"
        return Worker(
            self._python(entry),
            log,
            peer=entry.peer,
            folder=self._files(entry),
            workers=workers,
            verify=entry.verify,
        )


def keep(found: dict[str, Any], results: Path) -> None:
    """Write figures and picture."""
    results.mkdir(parents=True, exist_ok=True)
    storage.write_text(str(results / "data_loaders.json"), json.dumps(found, indent=1) + "\n")
    storage.write_text(str(results / "data_loaders.svg"), picture.drawn(found) + "\n")


def main() -> int:
    """Run, keep, and say which bars hold; 1 when one does not."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--documents", type=int, default=corpus.DOCUMENTS)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--folder", type=Path, default=ROOT / "runs" / ".bench")
    asked.add_argument("--results", type=Path, default=RESULTS)
    asked.add_argument("--uv", default="uv")
    asked.add_argument("--only", nargs="*", default=[entry.name for entry in ENTRIES])
    chosen = asked.parse_args()
    entries = tuple(entry for entry in ENTRIES if entry.name in chosen.only)
    bench = Bench(
        chosen.folder, documents=chosen.documents, rounds=chosen.rounds, uv=chosen.uv, entries=entries
    )
    found = bench.run()
    keep(found, chosen.results)
    for bar in found["bars"]:
        holds = "holds" if bar["holds"] else "DOES NOT HOLD"
        logger.info("%s: %s (at least %s): %s", bar["name"], bar["measured"], bar["least"], holds)
    logger.info("figures and picture: %s", chosen.results)
    return 0 if all(bar["holds"] for bar in found["bars"]) else 1


if __name__ == "__main__":
    sys.exit(main())
