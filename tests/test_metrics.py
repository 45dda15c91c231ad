"""Metrics of jobs, scraped over HTTP by a process that is none of their ranks."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from components.errors import ConfigError
from components.observability.events import EventLog
from components.observability.metrics.exporter import FORGET_SECONDS, serving
from components.reliability import journal
from components.reliability.heartbeat import Heartbeat

Scrape = dict[tuple[str, ...], float]
SECONDS = {"data": 0.01, "forward": 0.03, "backward": 0.05, "optimizer": 0.01}
WAITED = {"data": 0.0, "forward": 0.0, "backward": 0.02, "optimizer": 0.005}


class WrittenJob:
    """A job folder as ranks and supervisor write it, with their own classes."""

    def __init__(self, folder: Path, ranks: range = range(2)) -> None:
        self.folder = folder
        if 0 in ranks:
            journal.write(folder, "launched", processes=len(ranks))
        self.beats = [Heartbeat(folder / "beats", rank) for rank in ranks]
        self.logs = [EventLog(folder / "events", rank) for rank in ranks]

    def step(self, step: int, loss: float = 3.5, **more: Any) -> None:
        for beat, log in zip(self.beats, self.logs, strict=True):
            beat.beat(step, "forward")
            figures = {"gradient_norm": 0.7, "tokens": 512, "tokens_per_second": 5120.0, "mfu": 0.25}
            told = {"memory_bytes": 5 * 10**8, "seconds": SECONDS, "communication": WAITED}
            log.write("step", step=step, loss=loss, **{**figures, **told, **more})

    def saved(self, step: int) -> None:
        for log in self.logs:
            log.write("evaluate", step=step, held_out_loss=3.6, seconds={"evaluate": 0.2})
            log.write("save", step=step, seconds={"checkpoint": 0.1})
            told = {"seconds_stalled": 0.1, "seconds_to_save": 1.5, "seconds_hashing": 0.2}
            log.write("checkpoint", step=step, checkpoint="runs/step", **told)

    def close(self) -> None:
        for beat, log in zip(self.beats, self.logs, strict=True):
            beat._map.close()
            log.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WrittenJob]:
    made = WrittenJob(tmp_path / "demo-1a2b" / "scratch" / "pretrain")
    yield made
    made.close()


def scraped(port: int) -> Scrape:
    """Values by name and labels, in the order of their names: ("stanchion_step", "demo/pretrain", "0")."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name, *(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


JOB = "demo-1a2b/pretrain"


def test_a_scrape_tells_every_rank_from_the_first_line_it_wrote(job: WrittenJob, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        job.step(step)
    job.saved(3)
    with serving(tmp_path, port=0) as port:
        found = scraped(port)
        for rank in ("0", "1"):
            assert found["stanchion_step", JOB, rank] == 3
            assert found["stanchion_steps_total", JOB, rank] == 3
            assert found["stanchion_loss", JOB, rank] == 3.5
            assert found["stanchion_mfu_ratio", JOB, rank] == 0.25
            assert found["stanchion_phase_seconds_total", JOB, "backward", rank] == pytest.approx(0.15)
            assert found["stanchion_phase_seconds_total", JOB, "checkpoint", rank] == pytest.approx(0.1)
            assert found["stanchion_communication_seconds_total", JOB, rank] == pytest.approx(0.075)
            assert time.time() - found["stanchion_last_progress_timestamp_seconds", JOB, rank] < 60
        assert found["stanchion_checkpoint_step", JOB] == 3
        assert found["stanchion_checkpoint_save_seconds", JOB] == 1.5
        assert found["stanchion_held_out_loss", JOB] == 3.6
        assert found["stanchion_job_running", JOB] == 1
        job.step(4, loss=float("nan"), mfu=None)
        again = scraped(port)
    assert again["stanchion_step", JOB, "1"] == 4
    assert again["stanchion_steps_total", JOB, "1"] == 4, "nothing was counted twice"
    assert again["stanchion_loss", JOB, "1"] != again["stanchion_loss", JOB, "1"], "NaN stays NaN"
    assert ("stanchion_mfu_ratio", JOB, "1") not in again, "what is not known is not told"


def test_wherever_the_watched_folder_lies_a_job_has_the_same_name(job: WrittenJob, tmp_path: Path) -> None:
    job.step(1)
    for root in (tmp_path, tmp_path / "demo-1a2b", job.folder):
        with serving(root, port=0) as port:
            assert scraped(port)["stanchion_step", JOB, "0"] == 1


def test_a_line_that_is_being_written_counts_when_it_is_whole(job: WrittenJob, tmp_path: Path) -> None:
    job.step(1)
    path = job.folder / "events" / "rank-00001.jsonl"
    line = path.read_text()
    with serving(tmp_path, port=0) as port, path.open("a", buffering=1) as file:
        file.write(line[:-20])
        file.flush()
        assert scraped(port)["stanchion_steps_total", JOB, "1"] == 1
        file.write(line[-20:])
        assert scraped(port)["stanchion_steps_total", JOB, "1"] == 2
        file.write('"a torn line"\n{"at": 3\n')
        assert scraped(port)["stanchion_steps_total", JOB, "1"] == 2


def test_a_restart_with_fewer_ranks_leaves_no_ghosts_and_its_steps_are_rework(
    job: WrittenJob, tmp_path: Path
) -> None:
    for step in (1, 2, 3, 4):
        job.step(step)
    with serving(tmp_path, port=0) as port:
        assert scraped(port)["stanchion_ranks", JOB] == 2
        journal.write(job.folder, "fault", fault="stall", rank=1, step=4)
        journal.write(job.folder, "ended", fault="stall")
        broken = scraped(port)
        assert broken["stanchion_job_failed", JOB] == 1
        assert broken["stanchion_job_running", JOB] == 0
        shutil.rmtree(job.folder / "beats")
        (job.folder / "beats").mkdir()
        again = WrittenJob(job.folder, range(1))
        again.step(3)
        found = scraped(port)
        again.close()
    assert found["stanchion_step", JOB, "0"] == 3
    assert found["stanchion_steps_total", JOB, "0"] == 5
    assert ("stanchion_step", JOB, "1") not in found
    assert found["stanchion_ranks", JOB] == 1
    assert found["stanchion_restarts_total", JOB] == 1
    assert found["stanchion_incidents_total", JOB, "stall"] == 1
    assert found["stanchion_job_failed", JOB] == 0
    assert found["stanchion_goodput_seconds", "repeated", JOB] > 0
    assert found["stanchion_goodput_seconds", "restart", JOB] > 0


def test_a_finished_job_is_told_as_that_and_its_causes_sum_to_its_time(
    job: WrittenJob, tmp_path: Path
) -> None:
    for step in (1, 2):
        job.step(step)
    journal.write(job.folder, "ended", fault=None)
    with serving(tmp_path, port=0) as port:
        found = scraped(port)
    assert (found["stanchion_job_running", JOB], found["stanchion_job_failed", JOB]) == (0, 0)
    at = [json.loads(line)["at"] for line in (job.folder / "events" / journal.NAME).read_text().splitlines()]
    causes = [value for key, value in found.items() if key[0] == "stanchion_goodput_seconds"]
    assert sum(causes) == pytest.approx(at[-1] - at[0], abs=1e-4)


def test_jobs_come_and_go_and_one_that_cannot_be_read_hides_no_other(
    job: WrittenJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job.step(1)
    other = WrittenJob(tmp_path / "other" / "scratch" / "rl", range(1))
    other.step(7)
    (tmp_path / "broken" / "beats").mkdir(parents=True)
    (tmp_path / "broken" / "beats" / "rank-nobody").write_bytes(bytes(32))
    with serving(tmp_path, port=0) as port:
        found = scraped(port)
        assert found["stanchion_step", JOB, "0"] == 1
        assert found["stanchion_step", "other/rl", "0"] == 7
        assert found["stanchion_exporter_unreadable_jobs",] == 1
        assert "broken" in caplog.text
        shutil.rmtree(other.folder)
        assert ("stanchion_step", "other/rl", "0") not in scraped(port)
    other.close()


def test_a_job_without_a_sign_for_a_day_is_no_longer_told_of(tmp_path: Path) -> None:
    import struct

    folder = tmp_path / "job" / "beats"
    folder.mkdir(parents=True)
    long_ago = time.time() - FORGET_SECONDS - 60
    (folder / "rank-00000").write_bytes(struct.pack("<qqqd", os.getpid(), 9, 3, long_ago))
    with serving(tmp_path, port=0) as port:
        assert scraped(port)["stanchion_exporter_jobs",] == 0


def test_a_port_that_is_taken_is_said_so(tmp_path: Path) -> None:
    with (
        serving(tmp_path, port=0) as port,
        pytest.raises(ConfigError, match="choose another --port"),
        serving(tmp_path, port=port),
    ):
        pass


def test_a_scrape_of_1024_ranks_stays_small_and_quick(tmp_path: Path) -> None:
    """About 0.3 CPU-seconds and a megabyte; the bounds leave room for a busy machine."""

    def write(*steps: int) -> None:
        for rank in range(1024):  # one by one: few systems let a process hold two thousand files
            job = WrittenJob(tmp_path / "large", range(rank, rank + 1))
            for step in steps:
                job.step(step)
            job.close()

    write(1, 2, 3)
    with serving(tmp_path, port=0) as port:
        scraped(port)
        write(4)
        spent, wall = time.process_time(), time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page = answer.read()
        spent, wall = time.process_time() - spent, time.perf_counter() - wall
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    assert series < 1024 * 16 + 50
    assert len(page) < 2_000_000
    assert spent < 2.0, f"{spent:.2f} CPU-seconds, {wall:.2f} s"
