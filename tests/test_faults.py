"""Every kind of fault does to a real process what its file says, where the drill says."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from components.errors import ConfigError
from components.jobs import FOLDER_VARIABLE
from components.plugins import load, names
from components.reliability import live_faults
from components.reliability.faults import KINDS, Drill, point_of, struck_at

RANK = """
import time
from components.reliability.faults import inject
for step in range(1, 5):
    inject(0, step, "data")
    print(step, flush=True)
"""
ENDS = {"kill": -signal.SIGKILL, "exit": 1}
STANDS = ("blocked_loader", "busy_gil", "sleep", "stop")
TOUCHED_HERE = ("failing_storage", "partition", "slow_storage")
"""What they break is a file or a connection, of this very process."""
Start = Callable[[Drill], "subprocess.Popen[str]"]


def strike(kind: str, **chosen: float) -> None:
    module = load(KINDS, kind)
    module.strike(module.Config.model_validate(chosen))


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def one(drill: Drill) -> subprocess.Popen[str]:
        environment = {**os.environ, **drill.environment}
        started.append(
            subprocess.Popen([sys.executable, "-c", RANK], env=environment, stdout=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.communicate()


def wait_until_struck(marker: Path) -> None:
    deadline = time.monotonic() + 20
    while struck_at(marker) is None:
        assert time.monotonic() < deadline, "the fault never struck"
        time.sleep(0.02)


def test_every_kind_that_strikes_a_process_is_tried_here() -> None:
    assert {*ENDS, *STANDS, *TOUCHED_HERE, "slow_rank"} == {
        kind for kind in names(KINDS) if point_of(kind) is None
    }


@pytest.mark.parametrize("kind", sorted(ENDS))
def test_a_fault_that_ends_a_rank_ends_it_at_its_step(kind: str, start: Start) -> None:
    process = start(Drill(kind=kind, step=3))
    said, _ = process.communicate(timeout=20)
    assert (said.split(), process.returncode) == (["1", "2"], ENDS[kind])


@pytest.mark.parametrize("kind", STANDS)
def test_a_fault_that_holds_a_rank_leaves_it_alive_and_idle(kind: str, start: Start, tmp_path: Path) -> None:
    marker = tmp_path / "struck"
    process = start(Drill(kind=kind, step=2, once=str(marker)))
    wait_until_struck(marker)
    time.sleep(0.3)
    assert process.poll() is None
    stopped = psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    assert stopped == (kind == "stop")


def test_a_slow_rank_is_slow_in_as_many_steps_as_asked_and_a_restart_is_spared(
    start: Start, tmp_path: Path
) -> None:
    marker = tmp_path / "struck"
    drill = Drill(kind="slow_rank", step=2, steps=2, seconds=1, once=str(marker))
    start(drill).communicate(timeout=20)
    ended, struck = time.time(), struck_at(marker)
    assert struck is not None
    assert ended - struck >= 2.0
    said, _ = start(drill).communicate(timeout=20)
    assert said.split() == ["1", "2", "3", "4"]
    assert struck_at(marker) == struck


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(os, "pread", os.pread)  # a fault stays until the process ends
    (tmp_path / "train-000000.tar").write_bytes(bytes(4096))
    descriptor = os.open(tmp_path / "train-000000.tar", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_read_from_failing_storage_is_an_error_of_the_kernel(shard: int, tmp_path: Path) -> None:
    with (tmp_path / "other").open("wb+") as other:
        strike("failing_storage")
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(shard, 100, 512)
        assert os.pread(other.fileno(), 100, 0) == b""


def test_failing_storage_without_an_open_shard_is_refused() -> None:
    with pytest.raises(ConfigError, match="no shard open"):
        strike("failing_storage")


def test_reads_from_slow_storage_are_slow_and_right_until_its_time_is_over(shard: int) -> None:
    strike("slow_storage", seconds=0.1, lasts=0.15)
    strike("slow_storage", seconds=0.1, lasts=0.15)  # once in each step; waits do not add up
    started = time.monotonic()
    assert os.pread(shard, 100, 512) == bytes(100)
    assert 0.1 <= time.monotonic() - started < 0.19
    time.sleep(0.1)
    started = time.monotonic()
    assert os.pread(shard, 100, 512) == bytes(100)
    assert time.monotonic() - started < 0.1


def test_a_partition_lets_nothing_in_breaks_no_connection_and_spares_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ranks, socket.create_server(("127.0.0.1", 0)) as store:
        monkeypatch.setenv("MASTER_PORT", str(store.getsockname()[1]))
        pairs = []
        for server in (ranks, store):
            client = socket.create_connection(server.getsockname())
            pairs.append((client, server.accept()[0]))
        strike("partition")
        for client, accepted in pairs:
            accepted.sendall(b"step")
            client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            pairs[0][0].recv(4)
        assert pairs[1][0].recv(4) == b"step"
        for client, accepted in pairs:
            client.close()
            accepted.close()


@pytest.mark.parametrize(("kind", "seconds"), [("kil", None), ("kill", 3)])
def test_a_drill_that_cannot_be_is_refused_before_it_starts(kind: str, seconds: int | None) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"did you mean 'kill'|Extra inputs"):
        Drill(kind=kind, seconds=seconds)


LIVE = """
import os, time
from pathlib import Path
from components.reliability.heartbeat import Heartbeat
beat = Heartbeat(Path(os.environ["STANCHION_JOB_FOLDER"]) / "beats", 0)
for step in range(1, 10_000):
    beat.beat(step, "data")
    print(step, flush=True) if step == 1 else time.sleep(0.01)
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", LIVE], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_running_rank_is_killed_past_its_step(live: subprocess.Popen[str], tmp_path: Path) -> None:
    beat = live_faults.strike("kill", tmp_path, rank=0, after_step=20)
    assert live.wait(timeout=10) == -signal.SIGKILL
    assert (beat.pid, beat.step > 20) == (live.pid, True)


def test_a_process_of_another_job_is_never_struck(live: subprocess.Popen[str], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "beats").symlink_to(tmp_path / "beats")
    with pytest.raises(ConfigError, match="is not of"):
        live_faults.strike("kill", other, rank=0)
    assert live.poll() is None


@pytest.mark.parametrize(
    ("kind", "rank", "why"), [("sleep", 0, "from outside"), ("kill", 7, "no rank 7"), ("kil", 0, "'kill'")]
)
def test_a_live_fault_that_cannot_be_says_why(
    kind: str, rank: int, why: str, live: subprocess.Popen[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=why):
        live_faults.strike(kind, tmp_path, rank=rank)
    assert live.poll() is None
