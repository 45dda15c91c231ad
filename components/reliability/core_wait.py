"""How long a process has waited for a core: what makes a crowded machine look like a hang.

A rank that computes on a shared machine may stand in one phase for seconds because others run. The kernel
counts that wait (`/proc/<pid>/schedstat`, second number, nanoseconds of the main thread), so it can be taken
off the time that a rank has stood. A process that sleeps, is stopped or spins in a loop waits for no core.
Systems that do not count it (macOS, ranks on other machines) take nothing off.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from components.reliability import stacks
from components.reliability.heartbeat import Beat


class CoreWait:
    """Reads the ranks of one job; which process ids are its own is asked once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_ours: dict[int, bool] = {}

    def seconds(self, beats: Sequence[Beat]) -> dict[int, float]:
        """By rank, since its process began."""
        ours = self.of_this_machine(beats)
        return {beat.rank: waited(beat.pid) for beat in beats if beat.rank in ours}

    def of_this_machine(self, beats: Sequence[Beat]) -> set[int]:
        """Ranks that were found here once, whether or not they still run."""
        return {beat.rank for beat in beats if self._belongs(beat.pid)}

    def _belongs(self, pid: int) -> bool:
        if pid not in self._is_ours:
            self._is_ours[pid] = stacks.belongs(pid, self.folder)
        return self._is_ours[pid]


def waited(pid: int) -> float:
    """Seconds that the main thread of a process was ready to run and did not; 0 where nobody counts."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0
