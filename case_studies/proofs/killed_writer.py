"""A writer killed at any moment leaves no data set or a whole one, and the next run ends with the same bytes.

A real writer of two processes is killed with SIGKILL, or interrupted as by Ctrl-C, at seeded moments: the
whole tree, the run alone, or one of its workers. It is begun again, and now and then killed again. A place
then has either no manifest, or a data set of which every byte holds. The last run must give the manifest of
one that nobody disturbed, and a manifest vouches for every byte. On the local disk, and on an S3 server.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from components import storage
from components.data import manifest as manifests
from components.data import shards
from components.data import tokenizer as tokenizers
from components.data.curation.checked import Checked, SetAside
from components.data.document import document_of
from components.data.integrity import check_dataset
from components.data.sources import directory
from components.data.spool import Documents, Spool
from components.data.writing import dataset, pool, vocabulary
from components.errors import DataError, JobFailed
from components.reliability import object_server
from components.remote import filesystems

ROOT = Path(__file__).parents[2]
DOCUMENTS, WORKERS = 240, 2
CONFIG = shards.Config(documents_per_shard=16, held_out_share=0.2)
TARGETS = ("tree", "run", "worker", "interrupt")


def prove(seed: int = 0, count: int = 50) -> dict[str, Any]:
    """Kill the writer `count` times on the local disk and `count` times on S3."""
    with tempfile.TemporaryDirectory() as name, _s3() as bucket:
        folder = Path(name)
        make_corpus(folder)
        found = {
            "local": kill_and_resume(folder, str(folder / "published"), seed=seed, count=count),
            "s3": kill_and_resume(folder, bucket, seed=seed + 1, count=count),
        }
    holds = all(one["kills"] == count and not one["broken"] for one in found.values())
    return {"holds": holds, "seed": seed, **found}


def make_corpus(folder: Path) -> None:
    """A spool of generated documents and a tokenizer of their own."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(3000)]
    with Spool(folder / "documents.jsonl") as spool:
        for number in range(DOCUMENTS):
            text = " ".join(draw.choices(words, k=draw.randint(50, 300)))
            spool.append(document_of(text.encode(), f"{number}.txt"))
    tokenizers.save(vocabulary.learn(spool.documents(), tokenizers.Config(vocab_size=600), CONFIG), folder)


def write(folder: Path, url: str, scratch: Path) -> None:
    """What is killed: a data set from the corpus, by two processes."""
    left_out = [SetAside("0" * 16, "one.txt", "", "0" * 64, "too_short")]
    checked = Checked(Documents(folder / "documents.jsonl"), left_out, {"success": True}, "0" * 64, 1)
    dataset.make_dataset(
        checked,
        tokenizers.load(folder),
        url,
        source=directory.Config(path=str(folder)),
        config=CONFIG,
        scratch=scratch,
        write=partial(pool.write, workers=WORKERS),
    )


def kill_and_resume(folder: Path, place: str, *, seed: int, count: int) -> dict[str, Any]:
    """What was found after so many kills, each case in a place and scratch folder of its own."""
    draw = random.Random(seed)
    undisturbed, scratch = storage.join(place, "undisturbed"), folder / f"scratch-{seed}"
    seconds = _finish(folder, undisturbed, scratch)
    expected, found, broken = manifests.digest(undisturbed), Counter[str](), list[str]()
    while found["kills"] < count:
        url = storage.join(place, f"case-{found['cases']}")
        for _ in range(min(draw.choice((1, 1, 2)), count - found["kills"])):
            target = draw.choice(TARGETS)
            found[f"{target} {_kill(folder, url, scratch, target, draw.uniform(0, seconds))}"] += 1
            found["kills"] += 1
            broken += _faults(url, expected, f"after a kill of the {target}", may_be_missing=True)
        found["shards_kept"] += len(list(scratch.rglob("*.receipt.json")))
        _finish(folder, url, scratch)
        broken += _faults(url, expected, "at last")
        found["cases"] += 1
    return {"undisturbed_seconds": round(seconds, 2), "broken": broken, **dict(sorted(found.items()))}


def _faults(url: str, expected: str, when: str, *, may_be_missing: bool = False) -> list[str]:
    """What is wrong with a place: half a data set, or other bytes than those of the undisturbed writer."""
    if may_be_missing and not storage.exists(storage.join(url, manifests.NAME)):
        return []
    try:
        check_dataset(url, digest=expected)
    except DataError as error:
        return [f"{url} {when}: {error}"]
    return []


def _finish(folder: Path, url: str, scratch: Path) -> float:
    """Let the writer end; seconds it took once it was ready."""
    with _writer(folder, url, scratch) as process:
        started = time.monotonic()
        if process.wait() != 0:
            raise JobFailed(f"the writer of {url} ended with exit code {process.returncode}")
        return time.monotonic() - started


def _kill(folder: Path, url: str, scratch: Path, target: str, moment: float) -> str:
    """Kill so many seconds after the writer was ready; whether it was still at work."""
    with _writer(folder, url, scratch) as process:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment)
            return "came too late"
        for victim in _victims(process.pid, target):
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGINT if target == "interrupt" else signal.SIGKILL)
        process.wait()
        return "killed"


def _victims(pid: int, target: str) -> list[psutil.Process]:
    try:
        writer = psutil.Process(pid)
        workers = writer.children()
    except psutil.NoSuchProcess:
        return []
    if target == "worker":
        return workers[:1]
    return [writer] if target == "run" else [writer, *workers]


@contextlib.contextmanager
def _writer(folder: Path, url: str, scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A writer that has said that it begins; none of its processes is left afterwards."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(folder), url, str(scratch)],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
        )
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
            try:
                yield process
            finally:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _s3() -> Iterator[str]:
    """A bucket of a real S3 server, for this process and those it starts."""
    known = dict(os.environ)
    with object_server.serve("proof") as address:
        os.environ.update(object_server.environment(address))
        filesystems.forget()
        try:
            yield "s3://proof"
        finally:
            os.environ.clear()
            os.environ.update(known)
            filesystems.forget()


def main(folder: str, url: str, scratch: str) -> None:
    """The writer, in a process of its own."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    write(Path(folder), url, Path(scratch))


if __name__ == "__main__":
    main(*sys.argv[1:])
