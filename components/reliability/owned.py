"""A process that never outlives the one that started it: `python -m components.reliability.owned MODULE ...`.

torchrun gives every rank a session of its own, so a signal to the group of a killed supervisor reaches none
of them. Started through this module, launcher and ranks each ask the kernel to end them with their parent,
before anything heavy is imported.

Pattern: Owned Process Tree
Problem: a killed flow leaves its ranks behind; they hold devices, ports and memory, and nobody knows of them.
Answer: each level asks to die with the level above; the supervisor finds the rest by a mark they inherit.
Trade-off: a job cannot outlive its supervisor, so a supervisor that must be restarted takes the job with it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

PARENT_VARIABLE = "STANCHION_PARENT"
PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """End this process when `parent` ends; at once when it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        watch = threading.Thread(target=end_when_orphaned, args=(parent,), daemon=True)
        watch.start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_when_orphaned(parent: int, poll_seconds: float = 0.5) -> None:
    """What the kernel does on Linux, for systems where it does not."""
    while os.getppid() == parent:
        time.sleep(poll_seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Tie this process to its parent, let SIGUSR1 print every thread's stack, then run the module."""
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    del sys.argv[0]
    if "RANK" in os.environ:
        _run_rank(int(os.environ["RANK"]))
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _run_rank(rank: int) -> None:
    """A rank also tells of its collectives: when it is asked, and when it ends with an error."""
    from components.jobs import FOLDER_VARIABLE
    from components.reliability import flight_recorder

    folder = Path(os.environ[FOLDER_VARIABLE])
    flight_recorder.listen(folder, rank)
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
        flight_recorder.leave(folder, rank)
        sys.stdout.flush()
        os._exit(1)  # an orderly end of all that torch has started takes seconds, and the others wait


if __name__ == "__main__":
    main()
