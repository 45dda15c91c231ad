"""The command line: instant help, the right name for a typo, one clear message for a mistake."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows import cli

ROOT = Path(__file__).parent.parent


VERBS = (
    *("run", "list", "check", "promote", "quarantine", "scrub", "sign"),
    *("rebuild", "explain", "assess", "case", "fault", "metrics"),
)


def stanchion(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from flows.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def test_help_shows_every_verb() -> None:
    shown = stanchion("--help").stdout
    assert all(verb in shown for verb in VERBS)


def test_help_is_quick() -> None:
    """The best of five, so that a busy machine does not fail it; the promise is half a second."""
    seconds = []
    for _ in range(5):
        started = time.monotonic()
        stanchion("--help")
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 1.0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rum", "pretrain"], 'Did you mean "run"'),
        (["run", "pretrian"], "did you mean 'pretrain'?"),
        (["run", "pretrain", "--profle", "laptop"], "Did you mean --profile"),
        (["run", "pretrain", "--profile", "latop"], "did you mean 'laptop'?"),
        (["run", "pretrain", "--set", "training.stepps=3"], "did you mean 'steps'?"),
        (["run", "pretrain", "--set", "training.steps=0"], "training.steps=0: Input should be greater"),
        (["case", "silent_stal"], "did you mean 'silent_stall'?"),
        (["fault", "slep"], "did you mean 'sleep'?"),
        (["fault", "kill", "--job", "nowhere"], "nowhere/beats holds no beat"),
        (["check", "nowhere"], "nowhere"),
        (["list", "checkpoint"], "did you mean 'checkpoints'?"),
        (["list", "checkpoints", "nowhere"], "no checkpoints in nowhere"),
        (
            ["promote", "runs/step-000004"],
            "no checkpoint at runs/step-000004; `stanchion list checkpoints runs`",
        ),
        (["quarantine", "runs/step-000004", "--reason", "x"], "no checkpoint at runs/step-000004"),
        (["sign", "runs/step-000004"], "no checkpoint at runs/step-000004"),
        (["scrub", "nowhere"], "nothing at nowhere"),
        (["scrub", "tests", "--every", "often"], "for example 30min, 1h or 2d"),
        (["scrub", "tests", "--rate", "0"], "--rate 0: give MB a second above 0"),
        (["run", "scrub"], "use `stanchion scrub PATH`"),
        (["explain", "nowhere", "--step", "3"], "neither a run nor a checkpoint"),
        (["explain", "nowhere", "--stp", "3"], "Did you mean --step"),
        (["metrics", "nowhere"], "no folder nowhere"),
    ],
)
def test_a_mistake_is_answered_with_what_was_meant(arguments: list[str], expected: str) -> None:
    done = stanchion(*arguments)
    assert done.returncode == 2
    assert expected in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_says_what_would_run_and_runs_nothing(tmp_path) -> None:
    root = f"profile.storage.root={tmp_path / 'runs'}"
    done = stanchion("run", "pretrain", "--dry-run", "--set", root, "--set", "training.steps=7")
    assert done.returncode == 0
    assert "steps: 7" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_list_names_what_can_be_run() -> None:
    shown = stanchion("list").stdout
    assert all(name in shown for name in ("end_to_end", "rotten_checkpoint", "laptop", "python_stdlib"))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A data set of real files, one shard of which has a flipped bit and one index of which is gone."""
    from components.data import shards, tokenizer
    from components.data.curation.checked import Checked
    from components.data.sources import python_stdlib
    from components.data.writing import dataset

    source = python_stdlib.Config(max_documents=40)
    kept = [one for one in python_stdlib.read(source) if one.text]
    learnt = tokenizer.train((one.text for one in kept), tokenizer.Config(vocab_size=300))
    config = shards.Config(documents_per_shard=8, held_out_share=0.2)
    url = tmp_path / "run" / "shards"
    checked = Checked(kept, [], {}, "0" * 64, sum(len(one.text) for one in kept))
    scratch = tmp_path / "built"
    dataset.make_dataset(checked, learnt, str(url), source=source, config=config, scratch=scratch)
    tar = url / "train-000001.tar"
    content = bytearray(tar.read_bytes())
    content[len(content) // 2] ^= 1
    tar.chmod(0o644)
    tar.write_bytes(content)
    (url / "train-000002.index.npy").unlink()
    return url


def test_check_names_every_fault_and_rebuild_mends_them(damaged: Path) -> None:
    faulty = stanchion("check", str(damaged))
    assert faulty.returncode == 1
    assert [line[:4] for line in faulty.stdout.splitlines()] == ["FAIL", "FAIL", "next"]
    assert "train-000001.tar" in faulty.stdout
    assert "first harmed: " in faulty.stdout
    assert f"next: stanchion rebuild {damaged}" in faulty.stdout

    mended = stanchion("rebuild", str(damaged.parent))
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "train-000001.tar: built again from its source" in mended.stdout
    assert "train-000002.index.npy: made again from its tar" in mended.stdout
    assert f"kept in {damaged.parent / 'scratch' / 'rebuild' / 'quarantine'}" in mended.stdout
    assert mended.stdout.splitlines()[-1].startswith("pass  shards_match_manifest")

    again = stanchion("rebuild", str(damaged), "--shard", "train-000001.tar")
    assert again.returncode == 0
    assert "nothing to build again" in again.stdout
    assert stanchion("check", str(damaged)).returncode == 0


def test_rebuilding_only_one_shard_leaves_the_other_fault_and_says_so(damaged: Path) -> None:
    done = stanchion("rebuild", str(damaged), "--shard", "train-000002.tar")
    assert done.returncode == 1
    assert "FAIL  shards_match_manifest: train-000001.tar" in done.stdout


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import _progress

    monkeypatch.setattr(_progress, "SECONDS_ON_A_TERMINAL", 0.0)
    stream = Terminal()
    with _progress.Progress("checks", stream) as progress:
        for done in range(0, 101, 25):
            progress(done * 10_000_000, 1_000_000_000)
    assert "\n" not in stream.getvalue()
    assert "[###############...............] checks  50%  500.0 MB of 1.0 GB" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_is_a_line_now_and_then_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import _progress

    quick, slow = io.StringIO(), io.StringIO()
    with _progress.Progress("checks", quick) as progress:
        progress(5, 10)
    assert quick.getvalue() == ""
    monkeypatch.setattr(_progress, "SECONDS_ELSEWHERE", 0.0)
    with _progress.Progress("checks", slow) as progress:
        progress(5_000, 10_000)
    assert slow.getvalue().startswith("checks  50%  5 kB of 10 kB, ")
    assert slow.getvalue().endswith(" s left\n")


def test_the_command_that_comes_next_names_the_same_run() -> None:
    settings = ["profile.storage.root=s3://bucket/runs", "data.source.path=a b.jsonl"]
    command = cli._next_command("shard_dataset", "slurm", settings)
    assert shlex.split(command)[:5] == ["stanchion", "run", "pretrain", "--profile", "slurm"]
    assert shlex.split(command)[5:] == ["--set", settings[0], "--set", settings[1]]
    assert cli._next_command("pretrain", "laptop", []) == "stanchion run align"
