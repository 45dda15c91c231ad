"""Every core writes shards: worker processes that import numpy and the tokenizer, and hardly anything else.

Not `concurrent.futures`: its workers import the main module of whoever calls, Prefect included, and stay for
ever when that one is killed. Threads of the tokenizer itself would leave the writing of tars to one core.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from components.data.writing.layout import Part
from components.data.writing.plan import Plan
from components.data.writing.writer import Written, write_part
from components.errors import DataError
from components.reliability.owned import PARENT_VARIABLE

ROOT = Path(__file__).parents[2]
BYTES_FOR_A_WORKER = 4 << 20
"""With less text than that a process takes longer to start than to write."""
Tell = Callable[[Written], None]
"""Told of each shard that is whole."""


def write(plan: Plan, tell: Tell, workers: int | None = None) -> None:
    """Write every shard of a plan by so many processes; None takes all cores, or fewer for little text.

    The first error ends all workers. What is whole by then has a receipt, and is not written again.
    """
    if workers is None:
        workers = min(cores(), plan.documents.path.stat().st_size // BYTES_FOR_A_WORKER)
    if min(workers, len(plan.parts)) <= 1:
        for part in plan.parts:
            tell(write_part(plan, part))
        return
    with _crew(plan, min(workers, len(plan.parts))) as crew, ThreadPoolExecutor(len(crew)) as threads:
        idle: SimpleQueue[Worker] = SimpleQueue()
        for worker in crew:
            idle.put(worker)
        try:
            for done in as_completed([threads.submit(_ask, idle, part) for part in plan.parts]):
                tell(done.result())
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in crew:
                worker.kill()
            raise


def cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """The near end of one process."""

    def __init__(self, plan: Plan) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "components.reliability.owned", "components.data.writing.pool_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", PARENT_VARIABLE: str(os.getpid())},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        pickle.dump(plan, self._questions)

    def ask(self, part: Part) -> Written:
        """Have one shard written."""
        try:
            pickle.dump(part, self._questions)
            self._questions.flush()
            became = pickle.load(self._answers)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            code = self._process.wait()
            raise DataError(
                f"the process that was to write {part.name} ended with exit code {code}; what it said stands "
                "above, -9 is often too little memory; the same command goes on where this one stopped"
            ) from None
        if isinstance(became, Exception):
            became.add_note(f"while writing {part.name}")
            raise became
        assert isinstance(became, Written)
        return became

    def kill(self) -> None:
        """End it now."""
        self._process.kill()

    def close(self) -> None:
        """Let it end by itself."""
        with suppress(BrokenPipeError):
            self._questions.close()
        self._process.wait()
        self._answers.close()


@contextmanager
def _crew(plan: Plan, size: int) -> Iterator[list[Worker]]:
    crew: list[Worker] = []
    few = Plan(plan.folder, plan.documents, plan.tokenizer_sha256, [])
    try:
        for _ in range(size):
            crew.append(Worker(few))
        yield crew
    finally:
        for worker in crew:
            worker.close()


def _ask(idle: SimpleQueue[Worker], part: Part) -> Written:
    worker = idle.get()
    try:
        return worker.ask(part)
    finally:
        idle.put(worker)
