"""A real S3 server for drills and tests: moto's, as a process of its own on a free port.

Why moto: of the servers that come as a Python package it has the whole API and honours conditional puts; it
starts in a second. It keeps objects in memory, so it proves nothing of durability or of consistency between
nodes, and it checks no signature.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from components.errors import ConfigError, JobFailed
from components.reliability.owned import PARENT_VARIABLE

READY = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "stanchion",
    "AWS_SECRET_ACCESS_KEY": "stanchion",  # pragma: allowlist secret
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextlib.contextmanager
def serve(*buckets: str, start_seconds: float = 60.0) -> Iterator[str]:
    """The address of a server with these buckets, for as long as the block lasts; needs moto and flask."""
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        raise ConfigError("an S3 server for drills needs moto and flask; run `make setup` for both")
    with tempfile.TemporaryDirectory(prefix="object-server-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [sys.executable, "-m", "components.reliability.owned", "moto.server", "-p", "0"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
                cwd=Path(__file__).parents[2],
            )
        try:
            address = _address(server, log, time.monotonic() + start_seconds)
            for bucket in buckets:
                make_bucket(address, bucket)
            yield address
        finally:
            server.terminate()
            server.wait()


def environment(address: str) -> dict[str, str]:
    """What a user of this server has in the environment, as for MinIO or Ceph."""
    return {**CREDENTIALS, "AWS_ENDPOINT_URL": address}


def make_bucket(address: str, name: str) -> None:
    """Create an empty bucket."""
    import httpx

    httpx.put(f"{address}/{name}").raise_for_status()


def _address(server: subprocess.Popen[bytes], log: Path, deadline: float) -> str:
    while time.monotonic() < deadline and server.poll() is None:
        if found := READY.search(log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise JobFailed(f"the S3 server did not start; its log ends with: {log.read_text()[-2000:]}")
