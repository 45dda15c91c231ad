"""The last collectives of every rank, as torch's Flight Recorder has them, while it hangs in one of them.

A rank that waits in a collective runs no Python in its main thread, so signals wake threads that do nothing
else: SIGUSR2 asks for the record, and at SIGTERM a rank leaves it before it goes. One whose interpreter lock
is held cannot answer, and one that gloo has aborted leaves only the stack in its log.

Over gloo the recorder's states stay "scheduled" for ever, so what tells is the sequence of each group
(torch 2.13: on unless TORCH_FR_BUFFER_SIZE=0).
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from components.reliability import stacks

FOLDER = "flight"
REQUEST = signal.SIGUSR2
STACK = re.compile(r'File "(?P<filename>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
LAST = 512
"""Collectives that a rank tells of; a step has some dozens."""
ANSWER_SECONDS = 3.0
_asked: list[Callable[[], bool]] = []
"""At SIGTERM, whether it is a notice and no order to end."""
_LEAVING = threading.Lock()
"""A rank that ends of an error may be asked, or told to end, while it is writing already."""
LIBRARY = re.compile(r"[/\\](torch|deepspeed)[/\\]|<frozen|[/\\](runpy|threading|contextlib)\.py$")


@dataclass(frozen=True)
class Collective:
    """One call of a collective by one rank."""

    group: str
    sequence: int
    """Which call of its group: the same on all ranks, when all call the same."""
    op: str
    """`all_reduce`"""
    sizes: str
    dtypes: str
    place: str
    """The line of our code that called it, or of a library where none of ours did."""

    @property
    def told(self) -> str:
        """For a sentence."""
        tensors = f" of {self.sizes} {self.dtypes}" if self.dtypes else ""
        return f"{self.op}{tensors} ({self.place})"


def listen(folder: Path, rank: int) -> None:
    """Answer requests from now on, in this process; for its main thread to call, before others start.

    The request is held back from all threads but one, so that it interrupts no call: a rank that hangs goes
    on hanging. SIGTERM ends the process anyhow.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {REQUEST})
    _start(_answer, folder, rank)
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGTERM, _caught)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    _start(_end, heard, folder, rank)


def ask_first(is_notice: Callable[[], bool]) -> bool:
    """Ask this at each SIGTERM: one that is a notice does not end the process. False where nobody listens."""
    listens = signal.getsignal(signal.SIGTERM) is _caught
    if listens:
        _asked.append(is_notice)
    return listens


def leave(folder: Path, rank: int) -> None:
    """Write what this rank has called, for whoever asks when it is gone; nothing where it has no torch."""
    if "torch.distributed" not in sys.modules:
        return
    path = folder / FOLDER / f"rank-{rank:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    with _LEAVING:
        part.write_text(json.dumps([asdict(call) for call in own()]))
        part.replace(path)


def own() -> list[Collective]:
    """The last collectives of this process, oldest first."""
    from torch._C import _distributed_c10d

    with _no_import_of_inductor():
        dump: bytes = _distributed_c10d._dump_fr_trace()  # type: ignore[attr-defined]
    trace = pickle.loads(dump)  # of our own memory, by our own library
    return [collective(entry) for entry in trace.get("entries", [])[-LAST:]]


@contextmanager
def _no_import_of_inductor() -> Iterator[None]:
    """torch asks for `torch._inductor` when it names the lines of a stack, and importing that takes seconds.

    Where nobody has imported it, it has compiled none of these lines, so an empty one answers as well.
    """
    import torch

    if "_inductor" in vars(torch):
        yield
        return
    torch._inductor = SimpleNamespace()
    try:
        yield
    finally:
        del torch._inductor


def collective(entry: Mapping[str, Any]) -> Collective:
    """One entry of torch's recorder."""
    kind = " point to point" if entry["is_p2p"] else ""
    return Collective(
        group=f"{entry['process_group'][0]}{kind}",
        sequence=entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
        op=str(entry["profiling_name"]).rpartition(":")[2],
        sizes=" ".join("x".join(map(str, size)) or "scalar" for size in entry["input_sizes"]),
        dtypes=" ".join(dict.fromkeys(map(str, entry["input_dtypes"]))),
        place=_place(entry.get("frames") or []),
    )


def collect(pids: Mapping[int, int], folder: Path) -> dict[int, list[Collective]]:
    """What each rank of the job in `folder` answers, by rank; who does not answer in time is left out."""
    asked = {rank: pid for rank, pid in pids.items() if stacks.belongs(pid, folder) and _listens(pid)}
    for rank in asked:
        _file(folder, rank).unlink(missing_ok=True)
    for pid in asked.values():
        with suppress(ProcessLookupError):
            os.kill(pid, REQUEST)
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline and not all(_file(folder, rank).exists() for rank in asked):
        time.sleep(0.01)
    return read(folder, pids)


def hear(pids: Mapping[int, int], folder: Path) -> None:
    """Wait a moment for the records of ranks that end because another one has."""
    deadline = time.monotonic() + ANSWER_SECONDS / 2
    while time.monotonic() < deadline:
        silent = [rank for rank, pid in pids.items() if not _file(folder, rank).exists()]
        if not any(stacks.belongs(pids[rank], folder) for rank in silent):
            return
        time.sleep(0.02)


def read(folder: Path, ranks: Iterable[int]) -> dict[int, list[Collective]]:
    """What ranks have left there."""
    found = {rank: _file(folder, rank) for rank in ranks}
    return {
        rank: [Collective(**call) for call in json.loads(path.read_text())]
        for rank, path in found.items()
        if path.exists()
    }


def last_words(log: str) -> Collective | None:
    """Where a rank was that gloo has aborted, from the stack in its log: the call without number or shape."""
    if "Fatal Python error: Aborted" not in log:
        return None
    for thread in re.split(r"\n(?=Thread 0x|Current thread 0x)", log):
        frames = [found.groupdict() for found in STACK.finditer(thread)]
        inner = [n for n, frame in enumerate(frames[:2]) if "distributed_c10d" in frame["filename"]]
        if inner:  # one frame further in, where a clock of ours stands around the wait
            return Collective("", 0, frames[inner[0]]["name"], "", "", _place(frames[inner[0] :]))
    return None


def _start(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, name="flight recorder", daemon=True).start()


def _answer(folder: Path, rank: int) -> None:
    while True:
        signal.sigwait({REQUEST})
        leave(folder, rank)


def _caught(*_: object) -> None:
    """What matters is that the pipe is written to."""


def _end(heard: int, folder: Path, rank: int) -> None:
    while signal.SIGTERM not in os.read(heard, 64) or any(is_notice() for is_notice in _asked):
        pass
    try:
        leave(folder, rank)
    finally:
        os._exit(128 + signal.SIGTERM)


def _listens(pid: int) -> bool:
    """Whether the process holds the request back, as `listen` does: any other would end of it."""
    with suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        blocked = re.search(r"^SigBlk:\s*([0-9a-f]+)", status, re.MULTILINE)
        return bool(blocked and int(blocked[1], 16) >> (REQUEST - 1) & 1)
    return False


def _file(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank-{rank:05d}.json"


def _place(frames: Iterable[Mapping[str, Any]]) -> str:
    known = list(frames)
    ours = [frame for frame in known if not LIBRARY.search(frame["filename"])]
    chosen = next(iter(ours or known), None)
    if chosen is None:
        return "nowhere known"
    return f"{chosen['name']}, {Path(chosen['filename']).name}:{chosen['line']}"
