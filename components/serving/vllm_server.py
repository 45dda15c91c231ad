"""A vLLM server as an owned thing: started, ready when its engine answers, stopped until nothing is left.

Its HTTP side stays green while the engine hangs, and a dead engine exits with code 0; so ready and alive mean
that tokens come out, and any exit is a failure. What one process started, another finds and stops by the
server's folder:

    launch.json  what was started, for whom   process.json  its guard and session   server.log  what it said
    keep         survive the owner            ended.json    how it ended
    ready.json   what the start took
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from components import storage
from components.errors import ServingError
from components.serving import client, engine, guard, start_failures
from components.serving import release as releases

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
STOP_SECONDS = 30.0
LOG_BYTES = 200_000
STATE_FILES = ("launch.json", "process.json", "ended.json", "keep", "ready.json", "server.log")


@dataclass(frozen=True)
class Server:
    """A started server, known by its folder."""

    folder: Path
    url: str
    model: str
    release: str
    """Digest of the release that it serves."""
    vocab_size: int
    max_model_len: int

    @property
    def pid(self) -> int:
        """Process id of the HTTP side, which is also the session of all its processes."""
        return int(_json(self.folder / "process.json")["session"])

    def ended(self) -> str | None:
        """How it ended, or None while it runs. Exit code 0 is no excuse."""
        if (self.folder / "ended.json").exists():
            return str(_json(self.folder / "ended.json")["reason"])
        if (self.folder / "process.json").exists() and not _guard_lives(self.folder):
            return "its guard is gone"
        return None

    def makes_progress(self, within_seconds: float = 10.0) -> bool:
        """Whether tokens come out: a token for us in time, or engine steps while we queue for it."""
        if self.ended() is not None:
            return False
        try:
            before = client.steps(self.url)
            try:
                client.complete(self.url, self.model, [1], timeout_seconds=within_seconds)
            except httpx.TimeoutException:
                return client.steps(self.url) > before
        except httpx.HTTPError:
            return False
        return True

    def readiness(self) -> dict[str, float]:
        """What the start took: `start_seconds` to the first token, and `start_cpu_seconds`."""
        return _json(self.folder / "ready.json")

    def wait_until_ready(self, limit_seconds: float) -> None:
        """Return once it has generated a token; a server that cannot is explained."""
        started = time.monotonic()
        while (waited := time.monotonic() - started) < limit_seconds:
            if (reason := self.ended()) is not None:
                raise self._failed(f"{reason} after {waited:.0f} s, before it was ready")
            if client.is_listening(self.url) and self.makes_progress(limit_seconds - waited):
                took = {"start_seconds": time.monotonic() - started, "start_cpu_seconds": self.cpu_seconds()}
                storage.write_json(str(self.folder / "ready.json"), took)
                return
            time.sleep(POLL_SECONDS)
        raise self._failed(f"was not ready after {limit_seconds:.0f} s (serving.start_seconds)")

    def keep(self) -> None:
        """Let it live on when the process that started it ends."""
        (self.folder / "keep").touch()

    def stop(self) -> None:
        """End every process of it; returns only when none is left."""
        stop(self.folder)

    def survivors(self) -> list[int]:
        """Its processes that are alive."""
        return survivors(self.folder)

    def cpu_seconds(self) -> float:
        """Processor time that its processes have used."""
        return sum(sum(times) for pid in self.survivors() if (times := _cpu_times(pid)))

    def log(self) -> str:
        """The end of what it said."""
        path = self.folder / "server.log"
        return path.read_bytes()[-LOG_BYTES:].decode(errors="replace") if path.exists() else ""

    def _failed(self, what: str) -> ServingError:
        log = self.log()
        return ServingError(
            f"the server of release {self.release[:12]} {what}: {start_failures.explain(log)}\n"
            f"end of {self.folder / 'server.log'}:\n{start_failures.last_lines(log)}"
        )


def start(
    release: Path,
    folder: Path,
    *,
    expected_digest: str | None = None,
    device: str = "cpu",
    threads: int = 1,
    kv_cache_megabytes: int | None = None,
    ready_within_seconds: float = 300.0,
) -> Server:
    """Serve a release whose every byte is as recorded; what it returns is ready, else it is ended."""
    verified = releases.verify(release, expected_digest)
    engine.check_memory(release, verified, device=device, kv_cache_megabytes=kv_cache_megabytes)
    stop(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in STATE_FILES:
        (folder / name).unlink(missing_ok=True)
    port = _free_port()
    command = engine.command(
        release.absolute(), verified, port=port, device=device, kv_cache_megabytes=kv_cache_megabytes
    )
    launch = {
        "url": f"http://127.0.0.1:{port}",
        "model": verified.model,
        "release": releases.digest(release),
        "vocab_size": verified.vocab_size,
        "max_model_len": verified.max_model_len,
        "command": command,
        "environment": engine.environment(folder.absolute().parent / "cache", device=device, threads=threads),
        "owner": {"pid": os.getpid(), "started": psutil.Process().create_time()},
    }
    storage.write_json(str(folder / "launch.json"), launch)
    try:
        _start_guard(folder)
        server = _server(folder)
        server.wait_until_ready(ready_within_seconds)
    except BaseException:
        stop(folder)
        raise
    return server


def running(folder: Path) -> Server | None:
    """The server that runs from this folder, if one does, whoever started it."""
    if not (folder / "process.json").exists():
        return None
    server = _server(folder)
    return server if server.ended() is None else None


def stop(folder: Path) -> None:
    """End the server of this folder, whoever started it; raises when a process could not be ended."""
    if not (folder / "process.json").exists():
        return
    if _guard_lives(folder):
        os.kill(int(_json(folder / "process.json")["guard"]), signal.SIGTERM)
    if not _gone(folder, STOP_SECONDS):
        for pid in survivors(folder):
            _signal(pid, signal.SIGKILL)
    if not _gone(folder, STOP_SECONDS):
        raise ServingError(
            f"processes {survivors(folder)} of the server in {folder} do not end; end them by hand"
        )
    shutil.rmtree(_json(folder / "process.json")["scratch"], ignore_errors=True)


def survivors(folder: Path) -> list[int]:
    """Processes of this folder's server that are alive: its guard and everything in its session."""
    if not (folder / "process.json").exists():
        return []
    state = _json(folder / "process.json")
    members = [p for p in psutil.pids() if _session(p) == state["session"] and _is_alive(p)]
    return ([int(state["guard"])] if _guard_lives(folder) else []) + members


@contextmanager
def stopped_unless_kept(server: Server) -> Iterator[Server]:
    """The server for the length of a block; whatever happens in it, only a kept one survives."""
    try:
        yield server
    finally:
        if not (server.folder / "keep").exists():
            server.stop()


def _start_guard(folder: Path) -> None:
    """Start the guard; it leaves our process tree at once, so the one we started ends at once."""
    with (folder / "server.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-P", guard.__file__, str(folder.absolute())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    deadline = time.monotonic() + STOP_SECONDS
    while not (folder / "process.json").exists():
        if time.monotonic() > deadline:
            raise ServingError(f"the guard of {folder} did not start; read {folder / 'server.log'}")
        time.sleep(0.01)


def _server(folder: Path) -> Server:
    launch = _json(folder / "launch.json")
    known = ("url", "model", "release", "vocab_size", "max_model_len")
    return Server(folder, **{name: launch[name] for name in known})


def _guard_lives(folder: Path) -> bool:
    state = _json(folder / "process.json")
    return guard.lives(state["guard"], state["guard_started"])


def _gone(folder: Path, within_seconds: float) -> bool:
    deadline = time.monotonic() + within_seconds
    while survivors(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _cpu_times(pid: int) -> tuple[float, float] | None:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    return times.user, times.system


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


if (
    __name__ == "__main__"
):  # python -m components.serving.vllm_server <folder>: end the server that runs there
    stop(Path(sys.argv[1]))
