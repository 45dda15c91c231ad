"""The owner of a server's processes: a small process of its own that outlives nothing it should not outlive.

Started as a script (`guard.py <folder>`), with the standard library and psutil only, so it is up at once. It
leaves the caller's process tree, adopts every orphan of the server, and ends them all when the server ends,
when it is told to, or when the owner (the flow) is gone and nobody has said `keep`.

Pattern: Orphan Reaper
Problem: a server is several processes; killing the one that was started leaves the others holding the device.
Answer: one guard starts them, adopts their orphans (a Linux child subreaper), and proves that none is left.
Trade-off: one more process, and what it knows must be read from files.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_SECONDS = 0.2
GRACE_SECONDS = 10.0


def main(folder: Path) -> None:
    """Leave the caller, start what `launch.json` says, watch it to its end, leave `ended.json`."""
    if os.fork():
        os._exit(0)
    asked: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    launch = json.loads((folder / "launch.json").read_text())
    with tempfile.TemporaryDirectory(prefix="stanchion-") as scratch:
        process = _start(folder, launch, scratch)
        own = psutil.Process()
        _write(
            folder / "process.json",
            {
                "guard": own.pid,
                "guard_started": own.create_time(),
                "session": process.pid,
                "scratch": scratch,
            },
        )
        reason = _watch(folder, launch["owner"], process, asked)
        _end_all(process)
    _write(folder / "ended.json", {"code": process.returncode, "reason": reason, "at": time.time()})


def _start(folder: Path, launch: dict[str, Any], scratch: str) -> subprocess.Popen[bytes]:
    with (folder / "server.log").open("ab") as log:
        return subprocess.Popen(
            launch["command"],
            env={**os.environ, **launch["environment"], "TMPDIR": scratch},
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )


def _watch(folder: Path, owner: dict[str, Any], process: subprocess.Popen[bytes], asked: list[int]) -> str:
    """Why it must end now. A server that exits has failed, whatever its exit code says."""
    while True:
        if process.poll() is not None:
            return f"exited by itself with code {process.returncode}"
        if asked:
            return "stopped"
        if not (folder / "keep").exists() and not lives(owner["pid"], owner["started"]):
            return "its owner is gone"
        time.sleep(POLL_SECONDS)


def lives(pid: int, started: float) -> bool:
    """Whether the very process that started then is still running."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then kill what is left; orphans are ours by now, so none can hide."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for child in left:
            child.kill()
        psutil.wait_procs(left, timeout=1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _write(path: Path, content: dict[str, Any]) -> None:
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(content))
    aside.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
