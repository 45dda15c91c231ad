"""One late answer in a hundred costs a reader little: the 99th percentile falls threefold for 5% more bytes.

A real S3 server, behind a proxy that holds back a seeded share of the requests for half a second. The same
ranges are read with second requests turned off and on, each time from a process state that has seen nothing,
and after the same warm-up without late answers. What counts as late is learnt from the answers themselves.
The share of duplicate bytes is counted by the reader, in full, when it asks; the proxy counts what it sent.

At exactly one in a hundred the 99th percentile sits on the edge between late and not: the share here is 1%
of requests, and the percentile that is compared is the mean of the slowest hundredth of all reads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from components import storage
from components.reliability import faulty_object_store, object_server
from components.reliability.faulty_object_store import Faults, FaultyStore
from components.remote import filesystems
from components.remote.options import VARIABLE

TITLE = "Late answers are overtaken"
LENGTH = 64 << 10
OBJECT_BYTES = 4 << 20
WARM_UP = 100
SLOW = Faults(slow_share=0.01, slow_seconds=0.5, methods=("GET",))
LEAST_FALL, MOST_EXTRA = 3.0, 0.05


def prove(*, seed: int = 0, count: int = 2000) -> dict[str, Any]:
    """Read `count` ranges without and with second requests."""
    with _store(seed) as (store, url):
        storage.write_bytes(url, os.urandom(OBJECT_BYTES))
        alone = measured(store, url, seed=seed, count=count, share=0.0)
        hedged = measured(store, url, seed=seed, count=count, share=MOST_EXTRA)
    fall = alone["slowest_hundredth_ms"] / hedged["slowest_hundredth_ms"]
    extra = hedged["duplicate_bytes"] / hedged["bytes"]
    return {
        "holds": bool(
            fall >= LEAST_FALL and extra <= MOST_EXTRA and hedged["wrong"] == 0 and alone["slow"] > 0
        ),
        "fall": round(fall, 2),
        "least_fall": LEAST_FALL,
        "extra_share": round(extra, 4),
        "most_extra_share": MOST_EXTRA,
        "slow_share": SLOW.slow_share,
        "slow_seconds": SLOW.slow_seconds,
        "range_bytes": LENGTH,
        "alone": alone,
        "hedged": hedged,
    }


def measured(store: FaultyStore, url: str, *, seed: int, count: int, share: float) -> dict[str, Any]:
    """Latencies of reads in milliseconds, what hedging did, and what the store sent."""
    filesystems.forget()
    storage.use(storage.Config(hedge_share=share))
    content = storage.read_bytes(url)
    store.faults = Faults()
    for _ in range(WARM_UP):
        storage.read_range(url, 0, LENGTH)
    store.faults = SLOW
    store.random.seed(seed)
    before, sent = store.counts["slow"], store.counts["bytes"]
    milliseconds, wrong = [], 0
    for number in range(count):
        start = number * LENGTH % OBJECT_BYTES
        started = time.perf_counter()
        got = storage.read_range(url, start, LENGTH)
        milliseconds.append(1000 * (time.perf_counter() - started))
        wrong += got != content[start : start + LENGTH]
    milliseconds.sort()
    tail = milliseconds[-max(1, count // 100) :]
    return {
        "p50_ms": round(milliseconds[count // 2], 2),
        "p99_ms": round(milliseconds[count * 99 // 100], 2),
        "p999_ms": round(milliseconds[count * 999 // 1000], 2),
        "slowest_hundredth_ms": round(sum(tail) / len(tail), 2),
        "slow": store.counts["slow"] - before,
        "bytes_sent": store.counts["bytes"] - sent,
        "wrong": wrong,
        **filesystems.process().hedger.report(),
    }


@contextlib.contextmanager
def _store(seed: int) -> Iterator[tuple[FaultyStore, str]]:
    """A faulty store, the environment to reach it, and an address in it; all as before afterwards."""
    bucket = "hedged-reads"
    with (
        object_server.serve(bucket) as address,
        faulty_object_store.serve(address, seed=seed) as store,
    ):
        names = {**object_server.environment(store.url), VARIABLE: "{}"}
        earlier = {name: os.environ.get(name) for name in names}
        os.environ.update(names)
        try:
            yield store, f"s3://{bucket}/object"
        finally:
            filesystems.forget()
            for name, value in earlier.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
