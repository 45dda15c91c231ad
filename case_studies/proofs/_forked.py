"""Ranks that start in half a second: forked from a process that has imported what they need.

A job of torchrun spends ten seconds on imports before its first step, so two hundred restarts are an hour.
Here the supervisor's own process has imported torch, DeepSpeed and the target, and forks each rank from
itself, before it has any thread; what a rank runs from there on is the target's `main`, the same code with
the same environment.

Not the same as under torchrun: rank 0 holds the rendezvous, not an agent, so it dies with it; imported
modules are shared; a rank ends by `os._exit`. The same: real processes, a SIGKILL that none of them can see
coming, gloo between them, stacks and records of collectives when asked for, and the others ended a moment
after the first one is.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from components import quiet, storage
from components.errors import JobError
from components.jobs import FOLDER_VARIABLE, Job
from components.launchers import local
from components.plugins import Config
from components.reliability import flight_recorder
from components.reliability.owned import die_with_parent

AGENT_SECONDS = 0.1
"""Between two looks of torchrun's agent: so long the other ranks go on when one has ended."""
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
ANSWER = "STANCHION_PROOF_ANSWER"
"""Variable with the file for what a runner has found."""
ROOM = " " * 1024
MARK = f"{FOLDER_VARIABLE}={ROOM}"
"""In the environment of a process that forks ranks: each writes the folder of its job there."""
ENVIRONMENT_START = 47
"""Of the numbers in /proc/self/stat after the name: `env_start`, see proc_pid_stat(5)."""
ROOT = Path(__file__).parents[2]
TARGET = "components.training.pretrain"
NEEDED = (
    "components.checkpoints.resume",
    "deepspeed.checkpoint",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage_1_and_2",
    "safetensors.torch",
    "transformers.models.llama.modeling_llama",
    TARGET,
)


class Ranks:
    """The processes of one attempt."""

    def __init__(self, pids: list[int], logs: Path) -> None:
        self.logs = logs
        self._running = dict(enumerate(pids))
        self._codes: dict[int, int] = {}
        self._first: tuple[int, float] | None = None

    def poll(self) -> int | None:
        """Exit code of the rank that failed first, or 0; None while the job runs."""
        self._reap()
        if self._first is not None and time.monotonic() > self._first[1] + AGENT_SECONDS:
            self.stop()
        if self._running:
            return None
        return self._codes[self._first[0]] if self._first else 0

    def stop(self) -> None:
        """End every rank, and return only when none is left."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._running:
            if time.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            self._reap()
            time.sleep(0.002)

    def survivors(self) -> list[int]:
        """Process ids of the ranks that are still alive."""
        self._reap()
        return list(self._running.values())

    def log_tail(self, lines: int = 20) -> str:
        """The end of the log of the rank that failed first, else of rank 0."""
        rank = self._first[0] if self._first else 0
        ended = f"rank {rank} ended with exit code {self._codes[rank]}\n" if self._first else ""
        text = _log(self.logs, rank).read_text(errors="replace")
        return ended + "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _reap(self) -> None:
        for rank, pid in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._running[rank]
                self._codes[rank] = os.waitstatus_to_exitcode(status)
                if self._codes[rank] and self._first is None:
                    self._first = rank, time.monotonic()


def warm_up() -> None:
    """Import all that a rank needs, with nothing that starts a thread."""
    for name in NEEDED:
        importlib.import_module(name)


def launch(job: Job, config: Config) -> Ranks:
    """Fork the ranks of a job, as a launcher starts them; JobError when this process has threads."""
    job.prepare()
    logs = job.folder / "logs" / f"attempt-{len(list((job.folder / 'logs').iterdir())):03d}"
    logs.mkdir()
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise JobError(f"this process has {threads} threads, and only one may fork ranks; start it anew")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    return Ranks([_fork(job, rank, port, logs) for rank in range(job.processes)], logs)


def _fork(job: Job, rank: int, port: int, logs: Path) -> int:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork() or _rank(job, rank, port, _log(logs, rank), parent)


def _log(logs: Path, rank: int) -> Path:
    """All that a rank writes, where a launcher keeps its errors."""
    return logs / str(rank) / "stderr.log"


def _rank(job: Job, rank: int, port: int, log: Path, parent: int) -> NoReturn:
    """In the child: become this rank, and never return."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(parent)
        log.parent.mkdir()
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        _mark(job.folder)
        os.environ.update(local.environment(job))
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(job.processes),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        flight_recorder.listen(job.folder, rank)
        importlib.import_module(job.target).main()
        code = 0
    except BaseException:
        traceback.print_exc()
        flight_recorder.leave(job.folder, rank)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _mark(folder: Path) -> None:
    """Let whoever asks the system for this process's environment find its job there, as with a launched rank.

    The system shows what a process began with, in its own memory; a fork begins with its parent's.
    """
    begun = Path("/proc/self/environ").read_bytes()
    place = begun.find(MARK.encode())
    value = str(folder.absolute()).encode()
    if place < 0 or len(value) > len(ROOM):
        raise JobError(f"no room for {folder} in this process's environment; start it by `runner`")
    address = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[ENVIRONMENT_START])
    ctypes.memmove(address + place + len(MARK) - len(ROOM), value.ljust(len(ROOM), b"\0"), len(ROOM))


def runner(module: str, *arguments: str, under: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a module of this package in a process that may fork ranks; what it has answered.

    `under` is a command that runs another one, such as `unshare`. JobError with the end of what it wrote.
    """
    calm = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "answer.json"
        done = subprocess.run(
            [*under, sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, **quiet.ENVIRONMENT, **calm, ANSWER: str(place), FOLDER_VARIABLE: ROOM},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode or not place.exists():
            raise JobError(f"{module} ended with exit code {done.returncode}:\n{done.stderr[-4000:]}")
        answer: dict[str, Any] = storage.read_json(str(place))
        return answer


def answer(found: dict[str, Any]) -> None:
    """Hand it to the process that runs this one."""
    storage.write_json(os.environ[ANSWER], found)
