"""Ranks that part in a collective are named, with the call and its line, from what all have called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components.errors import JobStalled
from components.jobs import Job
from components.launchers import local
from components.reliability import evidence, flight_recorder
from components.reliability.collectives import parting
from components.reliability.evidence import Evidence
from components.reliability.finding import Finding
from components.reliability.flight_recorder import Collective
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits

ROOT = Path(__file__).parent.parent
STEP = [("all_reduce", "4096"), ("all_reduce", "128"), ("broadcast", "1")]


def calls(number: int = 30, group: str = "0", start: int = 1) -> list[Collective]:
    """What a healthy rank has called, some steps of it."""
    made = [STEP[index % 3] for index in range(number)]
    return [
        Collective(group, start + index, op, sizes, "Float", f"train, loop.py:{10 + index % 3}")
        for index, (op, sizes) in enumerate(made)
    ]


def test_ranks_that_make_the_same_calls_have_not_parted() -> None:
    assert parting({rank: calls() for rank in range(4)}) is None
    assert parting({0: calls()}) is None
    assert parting({}) is None


def test_what_the_recorder_has_forgotten_of_some_ranks_is_not_compared() -> None:
    assert parting({0: calls(30), 1: calls(30)[12:]}) is None


def test_the_rank_that_has_not_come_is_named_with_the_call_that_others_wait_in() -> None:
    found = parting({0: calls(30), 1: calls(29), 2: calls(30)})
    assert found is not None
    assert (found.kind, found.ranks, found.sequence, found.confidence) == ("missing", (1,), 30, "certain")
    assert found.sentence == (
        "rank 1 has not come to broadcast of 1 Float (train, loop.py:12), call 30 of group 0, where 2 other "
        "ranks wait; last there: all_reduce of 128 Float (train, loop.py:11)"
    )


def test_of_three_ranks_the_one_that_calls_something_else_is_named() -> None:
    other = calls(30)
    other[-1] = Collective("0", 30, "all_gather", "1", "Float", "evaluate, loop.py:99")
    found = parting({0: calls(30), 1: other, 2: calls(30)})
    assert found is not None
    assert (found.kind, found.ranks, found.confidence) == ("mismatch", (1,), "certain")
    assert found.sentence == (
        "rank 1 calls all_gather of 1 Float (evaluate, loop.py:99) where 2 other ranks call broadcast of 1 "
        "Float (train, loop.py:12): call 30 of group 0"
    )


def test_of_two_ranks_the_one_that_does_what_it_never_did_is_named() -> None:
    skips = [*calls(27), *(one for one in calls(31)[28:])]
    skips = [Collective(c.group, n + 1, c.op, c.sizes, c.dtypes, c.place) for n, c in enumerate(skips)]
    found = parting({0: skips, 1: calls(28)})
    assert found is not None
    assert (found.kind, found.ranks, found.sequence, found.confidence) == ("mismatch", (0,), 28, "likely")


def test_a_rank_that_skips_one_of_many_equal_calls_is_told_by_the_line() -> None:
    def equal(number: int, without: int | None = None) -> list[Collective]:
        lines = [index % 4 for index in range(number) if index != without]
        return [
            Collective("0", n + 1, "all_reduce", "64", "Float", f"sync, z.py:{line}")
            for n, line in enumerate(lines)
        ]

    found = parting({0: equal(40), 1: equal(40), 2: equal(40, without=37)})
    assert found is not None
    assert (found.kind, found.ranks, found.sequence) == ("mismatch", (2,), 38)


def test_a_branch_that_rank_0_always_takes_is_a_habit() -> None:
    mine = [Collective(c.group, c.sequence, c.op, c.sizes, c.dtypes, "lead, loop.py:50") for c in calls()]
    assert parting({0: mine, 1: calls(), 2: calls()}) is None
    behind = parting({0: mine, 1: calls(29), 2: calls()})
    assert behind is not None
    assert (behind.kind, behind.ranks) == ("missing", (1,))


def test_shapes_may_differ_where_the_operation_allows_it() -> None:
    uneven = {
        rank: [Collective("0", 1, "alltoall_base", str(rank), "Float", "moe, m.py:1")] for rank in range(3)
    }
    assert parting(uneven) is None


def test_the_group_in_which_ranks_parted_is_found_among_others() -> None:
    found = parting({rank: calls() + calls(20 - (rank == 2), group="7") for rank in range(4)})
    assert found is not None
    assert (found.group, found.ranks) == ("7", (2,))


def test_the_one_of_a_thousand_ranks_is_found() -> None:
    found = parting({rank: calls(300 - (rank == 777)) for rank in range(1024)})
    assert found is not None
    assert found.ranks == (777,)


def stall(rank: int = 0, confidence: str = "unclear") -> Finding:
    return Finding("stall", "2 ranks stand in backward of step 9", rank, 9, "backward", confidence=confidence)  # type: ignore[arg-type]


def test_where_beats_leave_the_name_open_the_collectives_decide() -> None:
    found = evidence.explained(stall(), Evidence(calls={0: calls(30), 1: calls(29)}))
    assert (found.kind, found.rank, found.confidence) == ("stall", 1, "certain")
    assert "rank 1 has not come to broadcast" in found.sentence


def test_where_beats_are_certain_the_collectives_do_not_overrule_them() -> None:
    found = evidence.explained(stall(0, "certain"), Evidence(calls={0: calls(30), 1: calls(29)}))
    assert (found.rank, found.confidence) == (0, "certain")


def test_the_only_rank_that_does_not_answer_is_suspected() -> None:
    found = evidence.explained(stall(0), Evidence(calls={0: calls(), 2: calls()}, silent=(1,)))
    assert (found.rank, found.confidence) == (1, "likely")
    assert "rank 1 alone does not answer" in found.sentence


def test_a_process_that_does_not_listen_is_not_signalled(tmp_path: Path) -> None:
    environment = {**os.environ, "STANCHION_JOB_FOLDER": str(tmp_path)}
    sleeping = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"]
    with subprocess.Popen(sleeping, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert flight_recorder.collect({0: process.pid}, tmp_path) == {}
        assert process.poll() is None, "the signal would have ended it"
        process.kill()


def test_a_recorder_is_read_without_an_import_that_takes_seconds() -> None:
    """A rank answers while it hangs, or has a moment left after SIGTERM."""
    reads = (
        "import sys, torch, torch.distributed as dist; from components.reliability import flight_recorder\n"
        "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:0', rank=0, world_size=1)\n"
        "def train(): dist.all_reduce(torch.ones(3))\n"
        "train()\n"
        "(call,) = flight_recorder.own()\n"
        "print(call.told, 'torch._inductor' in sys.modules, '_inductor' in vars(torch))"
    )
    done = subprocess.run(
        [sys.executable, "-c", reads], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "all_reduce of 3 Float (train, <string>:3) False False", done.stderr


TARGET = """
import ctypes, os, signal, time
import torch
import torch.distributed as dist
from components.jobs import this_rank

def main():
    rank = this_rank()
    dist.init_process_group("gloo")
    way, at = rank.settings["way"], 12
    for step in range(1, 30):
        odd = step == at and rank.rank == 1 and not os.path.exists(rank.settings["marker"])
        rank.heartbeat.beat(step, "backward")
        if odd:
            open(rank.settings["marker"], "w").close()
        if odd and way == "gil":
            ctypes.PyDLL(None).sleep(600)
        if odd and way == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        gradients(odd and way)
        total = torch.ones(1)
        dist.all_reduce(total)
        time.sleep(0.01)
    dist.barrier()
    dist.destroy_process_group()
    rank.heartbeat.beat(29, "done")
    rank.finish({"step": 29})

def gradients(way):
    if way == "skip":
        return
    if way == "op":
        dist.broadcast(torch.ones(64), 1)
    elif way == "shape":
        dist.all_reduce(torch.ones(65))
    else:
        dist.all_reduce(torch.ones(64))

if __name__ == "__main__":
    main()
"""
QUICK = Limits(floor_seconds=1.5, step_factor=3.0, backoff_seconds=0.0, poll_seconds=0.05)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    (tmp_path / "parting.py").write_text(TARGET)

    def make(way: str, ranks: int) -> Job:
        settings = {"way": way, "marker": str(tmp_path / "struck")}
        environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
        return Job("parting", "parting", settings, tmp_path / "job", ranks, environment=environment)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "ranks", "kind", "told"),
    [
        ("skip", 2, "collective_mismatch", "rank 1 calls all_reduce"),
        ("op", 3, "collective_mismatch", "rank 1 calls broadcast"),
        ("gil", 2, "stall", "rank 1 alone does not answer"),
    ],
)
def test_real_ranks_that_part_in_a_collective_are_named_and_the_job_goes_on(
    job: Callable[..., Job], way: str, ranks: int, kind: str, told: str
) -> None:
    outcome = supervise(lambda _: job(way, ranks), local.Config(grace_seconds=1.0), QUICK)
    (fault,) = outcome.faults
    assert (fault.kind, fault.rank, fault.recovered) == (kind, 1, True), fault
    assert told in fault.detail
    bundle = Path(outcome.incidents[0])
    page = (bundle / "summary.md").read_text()
    assert "The last collective of every rank" in page
    kept = [path.read_text().splitlines() for path in (bundle / "flight").iterdir()]
    assert {json.loads(lines[0])["op"] for lines in kept} == {"all_reduce"}
    verdict = json.loads((bundle / "collectives.json").read_text())
    if kind == "collective_mismatch":
        assert (verdict["parted"]["kind"], verdict["parted"]["ranks"]) == ("mismatch", [1])
    else:
        assert (verdict["silent"], list(verdict["last"])) == ([1], ["0"])
    assert (bundle / "summary.md").stat().st_mtime - fault.at.timestamp() < 5.0


def test_a_job_that_parts_each_time_ends_with_the_call_in_its_error(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    once = QUICK.model_copy(update={"max_restarts": 0})
    with pytest.raises(JobStalled, match=r"rank 1 calls all_reduce .*call \d+ of group 0.*summary\.md"):
        supervise(lambda _: job("skip", 2), local.Config(grace_seconds=1.0), once)
