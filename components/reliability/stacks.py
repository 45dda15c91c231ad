"""The Python stack of every rank of a job, taken from outside while it stands still.

Pattern: Black-Box Recorder
Problem: a hang is killed to free the devices, and with it goes the only evidence of where it hung.
Answer: every rank's stack is read before anything is killed: py-spy from outside, or a signal that the rank
answers even while a C call holds its interpreter lock.
Trade-off: a few seconds more of standing still, and a debugger's right on the machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from components.jobs import FOLDER_VARIABLE

DUMP_SECONDS = 10.0
ANSWER_SECONDS = 2.0
FRAME = re.compile(r'^\s+(?:File "(?P<file>.+?)", line (?P<line>\d+) in (?P<function>\S+)|\S.*\(.+\))\s*$')


def dump(pids: Mapping[int, int], folder: Path) -> dict[int, str]:
    """The stack of each rank, by rank, from its process id; what cannot be had says why."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        texts = pool.map(lambda pid: of_process(pid, folder), pids.values())
        return dict(zip(pids, texts, strict=True))


def of_process(pid: int, folder: Path) -> str:
    """The stack of one process of the job in `folder`."""
    if not belongs(pid, folder):
        return f"process {pid} is not on this machine or has ended"
    state = _state(pid)
    text = _by_py_spy(pid, *(["--nonblocking"] if state == psutil.STATUS_STOPPED else []))
    text = text or _by_signal(pid) or f"process {pid} did not answer py-spy, nor SIGUSR1"
    return f"State: {state}\n{text}"


def innermost(stack: str, frames: int = 3) -> list[str]:
    """The innermost frames of the main thread, as `function (file:line)`."""
    lines = stack.splitlines()
    starts = [n for n, line in enumerate(lines) if "MainThread" in line or line.startswith("Current thread")]
    below = lines[starts[0] + 1 :] if starts else lines
    return [_frame(line) for line in below if FRAME.match(line)][:frames]


def _frame(line: str) -> str:
    found = FRAME.match(line)
    if found and found["file"]:
        return f"{found['function']} ({found['file']}:{found['line']})"
    return line.strip()


def belongs(pid: int, folder: Path) -> bool:
    """A beat may come from another machine, where the same number is another process."""
    try:
        return psutil.Process(pid).environ().get(FOLDER_VARIABLE) == str(folder.absolute())
    except (psutil.Error, OSError, ValueError):
        return False


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "ended"


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _by_py_spy(pid: int, *options: str) -> str:
    """What py-spy reads from the memory of a process; of a stopped one without stopping it once more."""
    ask = [_py_spy() or "py-spy", "dump", "--full-filenames", *options, "--pid", str(pid)]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=DUMP_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _by_signal(pid: int) -> str:
    """What the rank prints of itself on SIGUSR1, read back from its error log."""
    try:
        log = Path(os.readlink(f"/proc/{pid}/fd/2"))
        before = log.stat().st_size
        os.kill(pid, signal.SIGUSR1)
    except OSError:
        return ""
    deadline = time.monotonic() + ANSWER_SECONDS
    while log.stat().st_size == before and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)
    with log.open(errors="replace") as file:
        file.seek(before)
        return file.read()
