"""Reliability: a job is judged by its progress, its evidence is kept, and it is started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from components.errors import GateRefused, JobFailed, JobStalled
from components.jobs import Job
from components.launchers import local
from components.records import Verdict
from components.reliability import core_wait, faults, heartbeat, incidents, stacks, watchdog
from components.reliability.config import Reliability
from components.reliability.evidence import Evidence
from components.reliability.faults import Drill
from components.reliability.finding import Attempt, Detector, Finding, Sight
from components.reliability.heartbeat import Beat, Heartbeat
from components.reliability.ledger import Outcome
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits, Watchdog

ROOT = Path(__file__).parent.parent
TARGET = '''
import time
from components.jobs import this_rank
from components.reliability import heartbeat
from components.reliability.faults import inject

def main():
    rank = this_rank()
    settings = rank.settings
    for step in range(1, settings["steps"] + 1):
        for phase in ("data", "forward", "backward", "optimizer"):
            rank.heartbeat.beat(step, phase)
            inject(rank.rank, step, phase)
            if phase == "backward":
                wait_for_all(rank, step)
            time.sleep(0.005)
        rank.events.write("step", step=step, loss=1.0)
        if step == settings.get("checkpoint_at"):
            rank.heartbeat.beat(step, "checkpoint")
            time.sleep(settings["checkpoint_seconds"])
    rank.heartbeat.beat(settings["steps"], "done")
    rank.finish({"step": settings["steps"]})

def wait_for_all(rank, step):
    """Like a collective: nobody leaves before all have come."""
    early = ("data", "forward")
    while any(
        beat.step < step or (beat.step == step and beat.phase in early)
        for beat in heartbeat.read(rank.folder / "beats")
    ):
        time.sleep(0.002)

if __name__ == "__main__":
    main()
'''
QUICK = Limits(floor_seconds=1.0, step_factor=3.0, backoff_seconds=0.0, poll_seconds=0.05)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """A job of two ranks that only beat; no torch inside."""
    (tmp_path / "beating.py").write_text(TARGET)

    def make(drill: Drill | None = None, **settings: object) -> Job:
        paths = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
        environment = {**paths, **(drill.environment if drill else {})}
        return Job(
            "beating", "beating", {"steps": 40, **settings}, tmp_path / "job", 2, environment=environment
        )

    return make


def beats(*places: tuple[int, str]) -> list[Beat]:
    return [Beat(rank, 1, step, phase, 0.0) for rank, (step, phase) in enumerate(places)]


def paced(ranks: int, steps: int = 10, limits: Limits = QUICK) -> Watchdog:
    """A watchdog that has seen some steps of 0.1 s."""
    dog = Watchdog(limits, ranks, now=0.0)
    for step in range(1, steps + 1):
        assert dog.look(beats(*[(step, "forward")] * ranks), step * 0.1) is None
    return dog


def test_the_watchdog_names_the_one_rank_of_1024_that_is_behind() -> None:
    dog = paced(1024)
    places = [(11, "backward")] * 1024
    places[777] = (11, "data")
    started = time.monotonic()
    assert dog.look(beats(*places), 1.1) is None
    stall = dog.look(beats(*places), 2.2)
    assert time.monotonic() - started < 1.0
    assert stall is not None
    assert (stall.rank, stall.step, stall.phase) == (777, 11, "data")
    assert stall.confidence == "certain"


def test_a_thousand_healthy_steps_with_checkpoints_raise_no_alarm() -> None:
    dog, now = Watchdog(QUICK, 8, now=0.0), 0.0
    for step in range(1, 1001):
        now += 0.1
        assert dog.look(beats(*[(step, "backward")] * 8), now) is None
        if step % 50 == 0:
            for _ in range(200):  # a checkpoint of 20 s, two hundred times a step
                now += 0.1
                assert dog.look(beats(*[(step, "checkpoint")] * 8), now) is None


def test_a_rank_in_a_checkpoint_is_not_blamed_while_the_others_wait_for_it() -> None:
    dog = paced(2)
    assert dog.look(beats((10, "checkpoint"), (11, "backward")), 1.1) is None
    assert dog.look(beats((10, "checkpoint"), (11, "backward")), 60.0) is None


def test_ranks_in_one_place_leave_the_name_unclear() -> None:
    dog = paced(4)
    assert dog.look(beats(*[(11, "backward")] * 4), 1.1) is None
    stall = dog.look(beats(*[(11, "backward")] * 4), 9.0)
    assert stall is not None
    assert stall.confidence == "unclear"
    assert "compare the stacks" in stall.sentence


def test_a_rank_that_never_began_is_named_after_the_start_limit() -> None:
    dog = Watchdog(Limits(start_seconds=30), 2, now=0.0)
    assert dog.look(beats((0, "start"))[:1], 29.0) is None
    stall = dog.look(beats((1, "data"))[:1], 31.0)
    assert stall is not None
    assert (stall.rank, stall.phase) == (1, "start")


def test_the_limit_of_a_step_follows_the_pace_of_the_run() -> None:
    dog = Watchdog(Limits(step_factor=5, floor_seconds=1), 1, now=0.0)
    assert dog.limit("forward") == Limits().first_steps_seconds
    for step in range(1, 12):
        dog.look(beats((step, "forward")), step * 2.0)
    assert dog.median_step == pytest.approx(2.0)
    assert dog.limit("forward") == pytest.approx(10.0)


def test_a_rank_that_waits_for_a_core_does_not_stand_still() -> None:
    dog, stands = paced(2), beats((11, "data"), (11, "backward"))
    assert dog.look(stands, 1.1, {0: 5.0}) is None
    assert dog.look(stands, 4.0, {0: 7.5}) is None  # 2.9 s, of which it was ready and not run for 2.5
    stall = dog.look(stands, 8.0, {0: 7.5})
    assert stall is not None
    assert stall.seconds == pytest.approx(4.4)


def test_a_process_beside_others_waits_for_a_core_and_one_that_sleeps_does_not() -> None:
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not count the wait for a core")
    spin = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    crowd = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        time.sleep(1.0)
        assert all(core_wait.waited(process.pid) > 0.1 for process in crowd)
        assert core_wait.waited(sleeper.pid) < 0.5
    finally:
        for process in (*crowd, sleeper):
            process.kill()
            process.wait()


def test_an_attempt_that_follows_knows_the_pace_after_its_first_step() -> None:
    pace = paced(2).median_step
    assert pace == pytest.approx(0.1)
    dog = Watchdog(QUICK, 2, now=0.0, pace=pace)
    dog.look(beats((21, "data"), (21, "data")), 5.0)
    assert dog.limit("data") == QUICK.first_steps_seconds
    dog.look(beats((22, "data"), (22, "data")), 5.1)
    assert dog.limit("data") == QUICK.floor_seconds
    assert dog.look(beats((22, "data"), (22, "forward")), 7.0) is not None


def test_an_evaluation_may_last_a_few_times_the_longest_of_this_run() -> None:
    limits = Limits(rare_floor_seconds=1.0, rare_factor=5.0)
    dog, now = Watchdog(limits, 1, now=0.0), 0.0
    for step in (1, 2):
        assert dog.limit("evaluate") == limits.evaluate_seconds
        dog.look(beats((step, "evaluate")), now)
        now += 2.0
        dog.look(beats((step + 1, "data")), now)
    assert dog.limit("evaluate") == pytest.approx(10.0)
    assert dog.limit("flush") == limits.checkpoint_seconds


def test_a_rank_that_moves_while_evidence_is_gathered_is_excused_and_the_limit_grows(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    drill = Drill(kind="sleep", rank=1, step=10, phase="forward", seconds=1, once=str(tmp_path / "struck"))
    limits = QUICK.model_copy(update={"floor_seconds": 0.98, "poll_seconds": 0.005})
    outcome = supervise(lambda attempt: job(drill), local.Config(), limits)
    assert (outcome.faults, outcome.restarts, outcome.result["step"]) == ([], 0, 40)
    dog = paced(1)
    dog.excuse(Finding(kind="stall", sentence="", phase="forward", seconds=2.0))
    assert dog.limit("forward") == pytest.approx(3.0)


def test_a_beat_that_is_just_being_made_is_left_out(tmp_path: Path) -> None:
    Heartbeat(tmp_path, 0).beat(3, "forward")
    (tmp_path / "rank-00001").write_bytes(b"")
    assert [(beat.rank, beat.step, beat.phase) for beat in heartbeat.read(tmp_path)] == [(0, 3, "forward")]


def test_without_a_drill_nothing_strikes() -> None:
    faults._drill.cache_clear()
    started = time.perf_counter()
    for step in range(10_000):
        faults.inject(0, step, "data")
    assert time.perf_counter() - started < 0.5


def test_a_summary_of_a_thousand_ranks_is_one_page(tmp_path: Path) -> None:
    places = [(11, "backward")] * 1024
    places[5] = (11, "data")
    places_of = beats(*places)
    stall = watchdog.stall(places_of[5], seconds=2.0, limit=1.0, tied=1, waiting=1023)
    job = Job("pretrain", "x", {}, tmp_path, 1024)
    text = incidents.summary(incidents.Incident(job, places_of, "", stall), Evidence())
    assert "Rank 5 stands in data of step 11" in text
    assert len(text.splitlines()) < 60


def test_the_bundle_keeps_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCH_API_KEY", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    kept = incidents.environment({"OMP_NUM_THREADS": "1"})
    assert kept["NCCL_DEBUG"] == "INFO"
    assert kept["OMP_NUM_THREADS"] == "1"
    assert "hush" not in kept.values()


def test_frames_are_read_from_py_spy_and_from_faulthandler() -> None:
    py_spy = 'Thread 7 (idle): "MainThread"\n    wait (a.py:3)\n    main (a.py:9)\n'
    handler = (
        "Current thread 0x1 (most recent call first):\n"
        '  File "a.py", line 3 in wait\n  File "a.py", line 9 in main\n'
    )
    assert stacks.innermost(py_spy) == ["wait (a.py:3)", "main (a.py:9)"]
    assert stacks.innermost(handler) == ["wait (a.py:3)", "main (a.py:9)"]


def test_a_crashed_rank_is_restarted_and_finishes(job: Callable[..., Job], tmp_path: Path) -> None:
    drill = Drill(kind="exit", rank=1, step=10, once=str(tmp_path / "struck"))
    outcome = supervise(lambda attempt: job(drill), local.Config(), QUICK)
    assert outcome.result == {"step": 40}
    assert outcome.restarts == 1
    (fault,) = outcome.faults
    assert (fault.kind, fault.rank, fault.step, fault.recovered) == ("crash", 1, 10, True)
    assert "told to end with an error" in fault.detail
    assert "told to end with an error" in (Path(outcome.incidents[0]) / "summary.md").read_text()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kind", ["sleep", pytest.param("busy_gil", marks=SLOW), pytest.param("stop", marks=SLOW)]
)
def test_a_stalled_rank_is_named_with_its_phase_and_stack(
    job: Callable[..., Job], tmp_path: Path, kind: str
) -> None:
    drill = Drill(kind=kind, rank=1, step=10, phase="forward", once=str(tmp_path / "struck"))
    outcome = supervise(lambda attempt: job(drill), local.Config(), QUICK)
    (fault,) = outcome.faults
    assert (fault.kind, fault.rank, fault.step, fault.recovered) == ("stall", 1, 10, True)
    assert "forward of step 10" in fault.detail
    assert fault.seconds_to_detect is not None
    assert fault.seconds_to_detect < 3.0
    bundle = Path(outcome.incidents[0])
    assert "_strike" in (bundle / "stacks" / "rank-00001.txt").read_text()
    assert "wait_for_all" in (bundle / "stacks" / "rank-00000.txt").read_text()
    assert "rank 1 in forward of step 10" in (bundle / "summary.md").read_text()
    assert {beat["rank"] for beat in json.loads((bundle / "beats.json").read_text())} == {0, 1}


def test_a_healthy_slow_checkpoint_raises_no_alarm(job: Callable[..., Job]) -> None:
    slow = job(checkpoint_at=20, checkpoint_seconds=3.0)
    assert supervise(lambda attempt: slow, local.Config(), QUICK).faults == []


@pytest.mark.usefixtures("prefect_server")
def test_the_task_moves_one_progress_bar_and_shows_faults(
    job: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client

    from tasks import launch_job as tasks

    monkeypatch.setattr(tasks, "UPDATE_SECONDS", 0.0)
    drill = Drill(kind="kill", rank=0, step=20, once=str(tmp_path / "struck"))

    @flow
    def train() -> Outcome:
        return tasks.launch_job(
            "a_job",
            lambda attempt: job(drill),
            local.Config(),
            total_steps=40,
            reliability=Reliability(limits=QUICK),
        )

    outcome = train()
    assert outcome.result == {"step": 40}
    assert [fault.kind for fault in outcome.faults] == ["crash"]
    with get_client(sync_client=True) as client:
        shown = {artifact.key: artifact for artifact in client.read_artifacts()}
    assert shown["a-job"].type == "progress"
    assert float(str(shown["a-job"].data)) > 20.0
    assert "a-job-faults" in shown


def test_a_stall_that_comes_back_uses_the_restarts_up(job: Callable[..., Job]) -> None:
    drill = Drill(kind="sleep", rank=0, step=10)
    limits = QUICK.model_copy(update={"max_restarts": 0})
    with pytest.raises(JobStalled, match=r"rank 0 stands in data of step 10.*summary\.md") as caught:
        supervise(lambda attempt: job(drill), local.Config(), limits)
    assert (caught.value.rank, caught.value.step, caught.value.phase) == (0, 10, "data")


def test_a_refused_checkpoint_ends_the_attempt_and_the_job_starts_again(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    refusal = GateRefused("step-000006", [Verdict(gate="weights_are_finite", passed=False, reason="1 NaN")])
    attempts = []

    def look(beats: list[Beat]) -> None:
        if len(attempts) == 1 and max((beat.step for beat in beats), default=0) > 5:
            raise refusal

    def attempt(number: Attempt) -> Job:
        attempts.append(number)
        return job()

    outcome = supervise(attempt, local.Config(), QUICK, look)
    (fault,) = outcome.faults
    assert (fault.kind, fault.recovered, outcome.restarts) == ("corruption", True, 1)
    assert fault.detail == f"{refusal}; memory holds the same"
    page = (Path(outcome.incidents[0]) / "summary.md").read_text()
    assert page.startswith("# Refused checkpoint of beating")
    assert "Step-000006 refused by weights_are_finite: 1 NaN; memory holds the same." in page
    assert list((Path(outcome.incidents[0]) / "stacks").iterdir()), "its ranks still stood"
    attempts.clear()
    with pytest.raises(JobFailed, match=r"was ended 1 times, last: step-000006 refused by .*summary.md"):
        supervise(attempt, local.Config(), QUICK.model_copy(update={"max_restarts": 0}), look)


class Late:
    """Tells of one late step, and ends the first attempt at another."""

    def __init__(self, ends: bool) -> None:
        self.ends, self.steps = ends, 0

    def look(self, sight: Sight) -> Iterator[Finding]:
        for event in sight.events:
            if event["kind"] == "step" and event["rank"] == 1:
                self.steps += 1
                if event["step"] in (10, 20):
                    ends = self.ends and event["step"] == 20
                    late = f"step {event['step']} was late"
                    yield Finding("late", late, rank=1, step=event["step"], ends=ends)


def test_what_a_detector_finds_is_told_or_ends_the_attempt_and_the_next_one_knows(
    job: Callable[..., Job],
) -> None:
    attempts: list[Attempt] = []
    made: list[Late] = []

    def attempt(number: Attempt) -> Job:
        attempts.append(number)
        return job()

    def detectors(_: Job) -> Sequence[Detector]:
        made.append(Late(ends=not made))
        return [made[-1]]

    outcome = supervise(attempt, local.Config(), QUICK, detectors=detectors)
    assert [fault.step for fault in outcome.faults] == [10, 20, 10, 20]
    assert all(fault.recovered for fault in outcome.faults)
    assert [fault.seconds_to_recover is not None for fault in outcome.faults] == [False, True, False, False]
    assert [found.sentence for found in attempts[1].findings] == ["step 20 was late"]
    assert (outcome.restarts, len(outcome.incidents)) == (1, 1)
    assert sum(outcome.goodput.values()) == pytest.approx(outcome.seconds, rel=0.01)
    assert made[1].steps == 40, "each attempt is watched anew, and sees every event once"


def test_a_detector_that_breaks_is_set_aside_and_the_job_goes_on(
    job: Callable[..., Job], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def look(self, sight: Sight) -> Iterator[Finding]:
            raise KeyError("seconds")

    outcome = supervise(lambda _: job(), local.Config(), QUICK, detectors=lambda _: [Broken()])
    assert (outcome.restarts, outcome.faults) == (0, [])
    assert caplog.text.count("Broken broke; this attempt goes on without it") == 1


def test_a_job_that_ends_without_a_result_has_failed(tmp_path: Path) -> None:
    (tmp_path / "nothing.py").write_text("")
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    empty = Job("nothing", "nothing", {}, tmp_path / "job", 1, environment=environment)
    limits = QUICK.model_copy(update={"max_restarts": 0})
    with pytest.raises(JobFailed, match="rank 0 left no result"):
        supervise(lambda attempt: empty, local.Config(), limits)


def test_a_process_without_pdeathsig_still_ends_when_orphaned(tmp_path: Path) -> None:
    child = (
        "import os; from components.reliability.owned import end_when_orphaned; parent = os.getppid(); "
        "print(os.getpid(), flush=True); end_when_orphaned(parent, 0.05)"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); input()"
    started = subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert started.stdout
    assert started.stdin
    pid = int(started.stdout.readline())
    started.kill()
    started.wait()
    started.stdin.close()
    assert started.stdout.read() == ""  # the child held the other end
    started.stdout.close()
    assert not stacks.belongs(pid, tmp_path)
