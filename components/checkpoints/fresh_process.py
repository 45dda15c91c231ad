"""Asking a Python process that knows nothing of this one: it has only the files, and answers with JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from components.errors import DataError

ROOT = Path(__file__).parents[2]


def ask(module: str, *arguments: str, threads: int, timeout_seconds: float) -> dict[str, Any]:
    """What `python -m module arguments` prints last, as JSON; DataError with the last line of its error."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"a fresh process was still busy after {timeout_seconds:g} s; "
            "raise timeout_seconds if that is too few"
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode} and said nothing"]
        raise DataError(f"a fresh process failed: {lines[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
