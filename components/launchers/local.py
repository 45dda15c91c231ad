"""Processes of this machine, started by torchrun and owned as a tree.

When to use: a laptop, one GPU box, every test. What it costs: nothing survives the machine, and nothing
survives the process that launched it: launcher and ranks die with it, however it ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import psutil
from pydantic import Field

from components import plugins, quiet
from components.errors import JobError
from components.jobs import ENDING, FOLDER_VARIABLE, Handle, Job
from components.reliability.owned import PARENT_VARIABLE

ROOT = Path(__file__).parents[2]
OWNED = "components.reliability.owned"
KILL_SECONDS = 10.0
LOOK_SECONDS = 1.0
FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


class Config(plugins.Config):
    """How the local process tree is treated."""

    grace_seconds: float = Field(default=5.0, gt=0)
    """Time between SIGTERM and SIGKILL of the tree."""


class ProcessTree:
    """torchrun, its ranks and whatever they start."""

    def __init__(self, process: subprocess.Popen[bytes], job: Job, logs: Path, grace_seconds: float) -> None:
        self.process, self.folder, self.logs = process, job.folder.absolute(), logs
        self.grace_seconds = grace_seconds
        self._seen: dict[int, psutil.Process] = {}
        self._looked_at = 0.0
        self._look()

    def poll(self) -> int | None:
        """Exit code of torchrun, or None while it runs."""
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._look()
        return self.process.poll()

    def stop(self) -> None:
        """SIGTERM, a grace period, SIGKILL; returns only when no process is left."""
        self._look()
        (self.folder / ENDING).touch()
        self._signal(signal.SIGTERM)
        self._wait(self.grace_seconds)
        deadline = time.monotonic() + KILL_SECONDS
        while self.survivors() and time.monotonic() < deadline:
            self._signal(signal.SIGKILL)
            self._wait(1.0)
        if left := self.survivors():
            raise JobError(
                f"processes {left} of {self.folder} outlived SIGKILL; see `ps -o pid,stat,wchan {left[0]}`"
            )
        self.process.wait()

    def survivors(self) -> list[int]:
        """Process ids of the tree that are still alive; what only waits to be reaped is not."""
        return sorted(process.pid for process in self._members())

    def log_tail(self, lines: int = 20) -> str:
        """The end of the log of the rank that failed first, else of rank 0, else of torchrun itself."""
        launcher = (self.logs / "launcher.log").read_text(errors="replace")
        failed = FAILED.search(launcher)
        rank = int(failed[2]) if failed else 0
        text = self._log_of(rank)
        ended = f"rank {rank} ended with exit code {failed[1]}\n" if failed else ""
        return ended + "\n".join(deque((text or launcher).splitlines(), maxlen=lines))

    def _log_of(self, rank: int) -> str:
        """What a rank wrote; errors when there are any, else what it printed."""
        for name in ("stderr.log", "stdout.log"):
            for path in self.logs.glob(f"*/attempt_*/{rank}/{name}"):
                if text := path.read_text(errors="replace").strip():
                    return text
        return ""

    def _look(self) -> None:
        """Remember the tree as it is: when a parent dies its children are no longer found from above."""
        self._looked_at = time.monotonic()
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            self._seen |= {process.pid: process for process in [root, *root.children(recursive=True)]}

    def _members(self) -> list[psutil.Process]:
        """Everything alive that was seen in the tree or bears the mark of this job."""
        self.process.poll()
        found = dict(self._seen)
        for process in psutil.process_iter():
            if process.pid not in found and self._is_marked(process):
                found[process.pid] = process
        return [process for process in found.values() if _is_alive(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(FOLDER_VARIABLE) == str(self.folder) and process.pid != os.getpid()
        except (psutil.Error, OSError):
            return False  # gone, or of another user

    def _signal(self, number: int) -> None:
        for process in self._members():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._members() and time.monotonic() < deadline:
            time.sleep(0.05)


def launch(job: Job, config: Config) -> Handle:
    """Start torchrun in a session of its own, with nothing of ours open and its output in files."""
    job.prepare()
    attempts = len(list((job.folder / "logs").glob("attempt-*")))
    logs = job.folder / "logs" / f"attempt-{attempts:03d}"
    logs.mkdir()
    with (logs / "launcher.log").open("wb") as output:
        process = subprocess.Popen(
            command(job, logs, config),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment(job),
            start_new_session=True,
        )
    return ProcessTree(process, job, logs, config.grace_seconds)


def command(job: Job, logs: Path, config: Config) -> list[str]:
    """torchrun on a free port of the loopback; restarts are the supervisor's, not torchrun's."""
    return [
        *(sys.executable, "-m", OWNED, "torch.distributed.run"),
        *("--standalone", "--local-addr", "127.0.0.1", "--nnodes", "1"),
        *("--nproc-per-node", str(job.processes), "--max-restarts", "0"),
        *("--shutdown-timeout", str(math.ceil(config.grace_seconds))),
        *("--log-dir", str(logs), "--redirects", "3"),
        *("-m", OWNED, job.target),
    ]


def environment(job: Job) -> dict[str, str]:
    """Ours, made quiet, bound to the loopback, and without threads that spin while they wait."""
    loopback = "lo" if sys.platform == "linux" else "lo0"
    fixed = {
        **quiet.ENVIRONMENT,
        "OMP_NUM_THREADS": str(job.threads_per_process),
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "GLOO_SOCKET_IFNAME": loopback,
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        **({} if Path("/dev/nvidiactl").exists() else {"DS_ACCELERATOR": "cpu"}),
    }
    owned = {FOLDER_VARIABLE: str(job.folder.absolute()), PARENT_VARIABLE: str(os.getpid())}
    return {**os.environ, **fixed, **job.environment, **owned}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
