"""How long this rank waits for others: one clock around the only call in which gloo makes a program wait.

Every collective of torch.distributed, whoever calls it (a loop of ours, DeepSpeed, a barrier, send and recv),
starts a `Work` and, unless it is to run beside computation, waits for it at once. So the time inside
`Work.wait` is the exposed communication, transport and the wait for slower ranks together: what overlaps
with computation is not in it. Not seen: `monitored_barrier`, and functional collectives under torch.compile.

On a GPU nothing is measured and no figure is given: over NCCL `Work.wait` orders two streams and returns, so
the host's clock would say almost zero however long the device waits. A profiler tells it there.
"""

from __future__ import annotations

import time
from typing import Any


class Clock:
    """Seconds this process has waited inside collectives since the clock was started."""

    def __init__(self) -> None:
        self.seconds, self.runs = 0.0, False
        self._wait: Any = None

    def start(self) -> None:
        """Count from now on, in all process groups of this process; again changes nothing."""
        from torch.distributed import Work

        if self.runs:
            return
        self.runs, self._wait = True, Work.wait
        within, now = Work.wait, time.perf_counter

        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            began = now()
            try:
                return within(work, *arguments, **options)
            finally:
                self.seconds += now() - began

        Work.wait = wait

    def stop(self) -> None:
        """Leave torch as it was."""
        from torch.distributed import Work

        if self.runs:
            Work.wait, self.runs = self._wait, False


CLOCK = Clock()
"""Of this process: groups are global in torch, so their clock is too."""
