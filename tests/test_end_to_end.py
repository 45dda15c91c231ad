"""The whole chain on a tiny run, killed once in every link: it continues there and repeats nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from components.config import Profile, Run, run_folder
from components.observability import events
from components.records import RunFolder

ROOT = Path(__file__).parent.parent
STAGES = ("shard_dataset", "pretrain", "sft", "rl", "deploy", "assess")
LINK_SECONDS = 300

TINY = {
    "name": "tiny",
    "data": {
        "source": {"kind": "python_stdlib", "max_documents": 80},
        "tokenizer": {"vocab_size": 600},
        "shards": {"held_out_share": 0.2},
    },
    "model": {"hidden_size": 64, "num_layers": 2, "intermediate_size": 96, "context_length": 128},
    "training": {"steps": 60, "checkpoint_every": 10, "evaluate_every": 30, "held_out_sequences": 8},
    "alignment": {
        "sft": {"steps": 16, "batch_size": 8, "checkpoint_every": 4},
        "rl": {"steps": 6, "prompts_per_step": 2, "samples_per_prompt": 2, "checkpoint_every": 2},
        "evaluation": {"prompts": 8, "samples_shown": 1},
    },
    # Claims about quality need more than a minute of training; those about integrity do not.
    "gates": {
        "checkpoint": {"files_match_manifest": {}, "weights_are_finite": {}, "loss_reproduces": {}},
        "alignment": {"files_match_manifest": {}, "weights_are_finite": {}},
        "deployment": {"answers_are_known": {}, "logprobs_match_trainer": {}, "load_is_served": {}},
    },
    "serving": {"load": {"requests": 8}},
}

CODE = """
import sys
from components import quiet
quiet.apply()
from flows.end_to_end import end_to_end
from components.config import Profile, Run
end_to_end(Run.model_validate_json(sys.argv[1]), Profile.model_validate_json(sys.argv[2]))
"""


@pytest.fixture
def tiny(tmp_path) -> tuple[Run, Profile]:
    where = Profile.model_validate("laptop").model_dump(mode="json")
    where["storage"]["root"] = str(tmp_path / "runs")
    return Run.model_validate(TINY), Profile.model_validate(where)


def start(run: Run, profile: Profile, log: Path) -> subprocess.Popen[bytes]:
    """The flow in a process of its own, as the command line or a worker would run it."""
    from prefect.settings import PREFECT_API_URL

    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-c", CODE, run.model_dump_json(), profile.model_dump_json()],
            cwd=ROOT,
            env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value()), "PYTHONPATH": str(ROOT)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def wait_for(true: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + LINK_SECONDS
    while not true():
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.05)


def left_behind(folder: RunFolder) -> list[str]:
    """Processes that still name the run's folder, on their command line or in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            said = [*process.cmdline(), *process.environ().values()]
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if process.pid != os.getpid() and any(folder.url in word for word in said):
            found.append(" ".join(process.cmdline())[:200])
    return found


def middle_of(folder: RunFolder, stage: str) -> Callable[[], bool]:
    """Whether a stage has begun and not ended, as its traces on disk show."""
    scratch = Path(folder.url) / "scratch"
    if stage == "shard_dataset":
        return lambda: any(scratch.rglob("*.tar"))
    if stage in ("pretrain", "sft", "rl"):
        return lambda: any((Path(folder.url) / "checkpoints" / stage).glob("*.state.json"))
    if stage == "deploy":
        return lambda: any((Path(folder.url) / "weights").glob("*/release.json"))
    return lambda: (Path(folder.url) / "records" / "deploy.json").exists()


def ended(folder: RunFolder) -> dict[str, str]:
    """When each completed stage ended."""
    return {r.stage: r.ended_at.isoformat() for r in folder.records() if r.status == "completed"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_chain_killed_in_every_link_continues_there_and_repeats_nothing(
    prefect_server, tiny, tmp_path
) -> None:
    run, profile = tiny
    folder, log = run_folder(run, profile), tmp_path / "log"
    finished: dict[str, str] = {}
    for stage in STAGES:
        process = start(run, profile, log)
        wait_for(middle_of(folder, stage), process, log)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 20
        while left := left_behind(folder):
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
        now = ended(folder)
        before = STAGES[: STAGES.index(stage)]
        assert set(before) <= set(now), f"killed in {stage}"
        assert {name: now[name] for name in finished} == finished, "a finished link was repeated"
        finished = {name: now[name] for name in before}
    process = start(run, profile, log)
    assert process.wait(timeout=LINK_SECONDS) == 0, log.read_text()[-4000:]
    now = ended(folder)
    assert set(now) == set(STAGES)
    assert {name: now[name] for name in finished} == finished
    assert_whole(folder)


def assert_whole(folder: RunFolder) -> None:
    """The digests join up from raw text to the deployment, and the report is one file that needs no host."""
    records = {record.stage: record for record in folder.records()}
    made = {artifact.digest for record in records.values() for artifact in record.outputs}
    for stage in STAGES[1:-1]:
        assert {artifact.digest for artifact in records[stage].inputs} <= made, stage
    resumed = events.read(Path(folder.url) / "events" / "pretrain", "resume", rank=0)
    assert any(event["step"] > 0 for event in resumed)
    report = (Path(folder.url) / "report" / "index.html").read_text()
    assert folder.run_id in report
    assert "http://" not in report.replace("http://www.w3.org/", "")
    assert "https://" not in report
