"""A full disk and a second tier that takes nothing are errors in words; training stops or goes on as told.

A real job of two ranks saves to a small disk of its own that somebody else's file has filled, or copies to a
tier that is mounted read-only. By `on_failure: stop` the job ends at a following step with an error that
names the step, the rank or tier and the cause; there is no checkpoint under a name that is not whole, and
when the cause is gone the next attempt goes on from the newest whole one to the end. By `continue` each such
save is an event with that error, training goes on, and once there is room again saves succeed. Either way
every step has the loss of a run that met no fault, to the last bit.

The disks are real ones, mounted in a namespace of their own (`unshare`), which takes Linux and either root
or user namespaces.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from case_studies.proofs import _data, _forked
from case_studies.proofs.killed_saves import Case, course, tier_of, torn
from components.checkpoints import names
from components.checkpoints.config import Config as Checkpoints
from components.errors import JobFailed
from components.observability import events
from components.reliability.heartbeat import Beat
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits

TITLE = "A save that fails is heard, and costs what it was told to"
APART = ("unshare", "--user", "--map-root-user", "--mount")
"""In a mount namespace of its own: what is mounted there nobody else sees, and it ends with the process."""
STEPS = 20
DISK_BYTES = 8 << 20
ROOM_BYTES = 1_500_000
"""Left on the full disk: enough for the first save, too little for all."""
Policy = Literal["stop", "continue"]


def prove(*, seed: int = 0, count: int = 1) -> dict[str, Any]:
    """Both faults under both policies, that many times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _data.make_real(folder / "data")
        return _forked.runner(__spec__.name, str(folder), str(count), under=APART)


def can_mount() -> bool:
    """Whether this machine lets us have a namespace."""
    try:
        return subprocess.run([*APART, "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode == 0
    except FileNotFoundError:
        return False


def run(folder: Path, count: int) -> dict[str, Any]:
    """Every case, in this process."""
    _forked.warm_up()
    usual = Case(folder, "usual", steps=STEPS)
    usual.run([])
    losses = dict(course(usual.job))
    cases: dict[str, dict[str, Any]] = {}
    for turn in range(count):
        for fault, trial in (("full disk", full_disk), ("read-only tier", read_only_tier)):
            for policy in ("stop", "continue"):
                found = trial(folder, f"{fault.replace(' ', '-')}-{policy}-{turn}", policy)
                found["steps_that_differ"] = sum(losses[step] != at for step, at in found.pop("course"))
                cases[f"{fault}, {policy}" + (f" ({turn + 1})" if turn else "")] = found
    return {"holds": all(map(holds, cases.values())), "cases": cases}


def holds(case: dict[str, Any]) -> bool:
    """All that is claimed of one case."""
    return bool(
        case["failed_saves"]
        and all(case["told"])
        and case["ended_with_an_error"] == (case["policy"] == "stop")
        and not case["torn"]
        and not case["steps_that_differ"]
        and case["last_step"] == STEPS
    )


def full_disk(folder: Path, name: str, policy: Policy) -> dict[str, Any]:
    """Somebody else's file fills the disk; it goes when the job has ended, or has gone on for a while."""
    disk = folder / name
    mount(disk, f"size={DISK_BYTES}")
    case = Case(folder, name, steps=STEPS, checkpoints=Checkpoints(on_failure=policy))
    filler = disk / "filler"
    filler.write_bytes(bytes(DISK_BYTES - ROOM_BYTES))

    def free() -> None:
        filler.unlink(missing_ok=True)

    found = _tried(case, policy, mend=free, wanted=("No space left on device", "could not be saved: rank "))
    subprocess.run(["umount", str(disk)], check=True)
    return found


def read_only_tier(folder: Path, name: str, policy: Policy) -> dict[str, Any]:
    """The tier is mounted so that nothing can be written."""
    tiers = Checkpoints(on_failure=policy, copy_to=str(tier_of(folder, name)))
    case = Case(folder, name, steps=STEPS, checkpoints=tiers)
    mount(case.tier, "ro")

    def writable() -> None:
        subprocess.run(["mount", "-o", "remount,rw", str(case.tier)], check=True)

    found = _tried(case, policy, mend=writable, wanted=("Read-only file system", f"its copy in {case.tier}"))
    subprocess.run(["umount", str(case.tier)], check=True)
    return found


def mount(folder: Path, options: str) -> None:
    """A disk in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)


def _tried(
    case: Case, policy: Policy, *, mend: Callable[[], None], wanted: tuple[str, ...]
) -> dict[str, Any]:
    """The job with the fault; without it once it has ended, or once two saves have failed."""

    def failures() -> list[dict[str, Any]]:
        return events.read(case.job.folder / "events", "checkpoint_failed", rank=0)

    def look(_: list[Beat]) -> None:
        if policy == "continue" and len(failures()) > 1:
            mend()

    error, once = "", Limits(max_restarts=0, poll_seconds=0.004)
    try:
        supervise(case.attempt, case.profile.launcher, once, look, _forked.launch)
    except JobFailed as failed:
        said = [*str(failed).splitlines(), *_logs(case)]  # a rank that lost its peer may be the first to end
        error = next((line for line in said if all(word in line for word in wanted)), str(failed))
        mend()
        supervise(case.attempt, case.profile.launcher, once, None, _forked.launch)
    told = [event["error"] for event in failures()] + ([error] if error else [])
    done = list(course(case.job))
    return {
        "policy": policy,
        "ended_with_an_error": bool(error),
        "failed_saves": len(told),
        "told": [all(word in one for word in wanted) for one in told],
        "error": told[0].replace(f"{case.tier.parent}/", "") if told else "",
        "torn": torn(case.checkpoints) + torn(str(case.tier)),
        "resumed_from": names.name_of(case.job.settings["resume_from"] or "step 0"),
        "last_step": done[-1][0],
        "checkpoints": [names.name_of(url) for url in names.newest_first(case.checkpoints)],
        "course": done,
    }


def _logs(case: Case) -> list[str]:
    """What all ranks have written."""
    paths = sorted((case.job.folder / "logs").glob("attempt-*/*/stderr.log"))
    return [line for path in paths for line in path.read_text(errors="replace").splitlines()]


if __name__ == "__main__":
    _forked.answer(run(Path(sys.argv[1]), int(sys.argv[2])))
