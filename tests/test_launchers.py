"""The local launcher: a tree that is owned to its last process, however it or its owner ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from components.jobs import FOLDER_VARIABLE, Job
from components.launchers import local
from components.reliability import heartbeat

ROOT = Path(__file__).parent.parent
WAITING = """
import signal, subprocess, sys, time
from components.jobs import this_rank
rank = this_rank()
rank.heartbeat.beat(1, "data")
if rank.settings.get("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
rank.heartbeat.beat(2, "data")
if rank.settings.get("fail") == rank.rank:
    sys.exit("the disk is full")
time.sleep(rank.settings["seconds"])
rank.finish({"world_size": rank.world_size})
"""
SUPERVISOR = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from components.jobs import Job
from components.launchers import local
from components.reliability.supervisor import supervise
environment = {"PYTHONPATH": sys.argv[2]}
job = Job("waiting", "waiting", {"seconds": 600}, Path(sys.argv[1]), 2, environment=environment)
supervise(lambda attempt: job, local.Config(grace_seconds=1.0))
"""


@pytest.fixture
def paths(tmp_path: Path) -> str:
    (tmp_path / "waiting.py").write_text(WAITING)
    return f"{tmp_path}:{ROOT}"


def make(tmp_path: Path, paths: str, **settings: object) -> Job:
    return Job("waiting", "waiting", settings, tmp_path / "job", 2, environment={"PYTHONPATH": paths})


def marked(folder: Path) -> list[int]:
    """Processes of a job by the mark in their environment, alive ones only."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(FOLDER_VARIABLE) == str(folder) and process.status() != "zombie":
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def both_wait(folder: Path) -> bool:
    beats = heartbeat.read(folder / "beats") if (folder / "beats").exists() else []
    return len(beats) == 2 and all(beat.step == 2 for beat in beats)


def test_a_job_leaves_its_result_and_no_process(tmp_path: Path, paths: str) -> None:
    job = make(tmp_path, paths, seconds=0)
    handle = local.launch(job, local.Config())
    wait_for(lambda: handle.poll() is not None)
    assert handle.poll() == 0
    handle.stop()
    assert job.result() == {"world_size": 2}
    assert marked(job.folder) == []


def test_stop_ends_ranks_that_ignore_sigterm_and_their_children(tmp_path: Path, paths: str) -> None:
    job = make(tmp_path, paths, seconds=600, stubborn=True)
    handle = local.launch(job, local.Config(grace_seconds=0.5))
    wait_for(lambda: both_wait(job.folder))
    assert len(handle.survivors()) == 5  # torchrun, two ranks, a child of each
    handle.stop()
    assert handle.survivors() == []
    assert marked(job.folder) == []


def test_the_log_tail_is_that_of_the_rank_that_failed(tmp_path: Path, paths: str) -> None:
    job = make(tmp_path, paths, seconds=600, fail=1)
    handle = local.launch(job, local.Config())
    wait_for(lambda: handle.poll() is not None)
    assert handle.poll() == 1
    assert handle.log_tail() == "rank 1 ended with exit code 1\nthe disk is full"
    handle.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_the_supervisor_ends_no_rank_is_left(tmp_path: Path, paths: str, number: int) -> None:
    folder = tmp_path / "job"
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, str(script), str(folder), paths],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as owner:
        try:
            wait_for(lambda: both_wait(folder))
            assert len(marked(folder)) == 3
            owner.send_signal(number)
            owner.wait(timeout=30)
        finally:
            owner.kill()
    wait_for(lambda: marked(folder) == [], seconds=0.5 if number != signal.SIGKILL else 5.0)


def test_two_jobs_at_once_do_not_clash(tmp_path: Path, paths: str) -> None:
    jobs = [
        Job("waiting", "waiting", {"seconds": 1}, tmp_path / name, 2, environment={"PYTHONPATH": paths})
        for name in ("one", "two")
    ]
    handles = [local.launch(job, local.Config()) for job in jobs]
    for handle in handles:
        wait_for(lambda handle=handle: handle.poll() is not None)
    assert [handle.poll() for handle in handles] == [0, 0]
    for handle in handles:
        handle.stop()


def test_ranks_are_bound_to_the_loopback_and_never_spin(tmp_path: Path) -> None:
    found = local.environment(Job("x", "x", {}, tmp_path, 2, threads_per_process=3))
    assert found["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert found["OMP_NUM_THREADS"] == "3"
    assert found["OMP_WAIT_POLICY"] == "passive"
    assert found["DO_NOT_TRACK"] == "1"
    assert found["PYTHONPATH"].split(":")[0] == str(ROOT)
