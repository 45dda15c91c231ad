"""The driver's end of a loader's process: it asks, and gives up on one that does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PATIENCE_SECONDS = 240


class Silent(Exception):
    """A loader that ended or hangs; its message has the last that it said."""


class Worker:
    """A loader in a process of its own, which is gone when the block is left."""

    def __init__(
        self, python: Path, log: Path, *, peer: str, folder: Path, workers: int, verify: bool
    ) -> None:
        settings = {"peer": peer, "folder": str(folder), "workers": workers, "verify": verify}
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = peer, log
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", "case_studies.benchmarks.measure", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """One command, one answer."""
        process = self._process
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        try:
            process.stdin.write(json.dumps({"do": do, **details}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise Silent(self._last_words(do)) from None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE_SECONDS) or not (line := process.stdout.readline()):
                raise Silent(self._last_words(do))
        return dict(json.loads(line))

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A process that is still reading its commands ends by itself when there are no more."""
        process = self._process
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        try:
            process.stdin.close()
            process.wait(5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass  # what is left goes with its group
        with contextlib.suppress(ProcessLookupError):  # nothing was left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def _last_words(self, do: str) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        said = lines[-1] if lines else "nothing"
        return f"no answer to '{do}' within {PATIENCE_SECONDS} s, or ended; last in {self.log}: {said}"


def ours() -> Path:
    """The interpreter that has Stanchion."""
    return Path(sys.executable)
