"""Preemption and elastic capacity: a job that is told in time loses nothing, and takes what room there is."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from case_studies._witnessed_train import place, rows
from components.config import Profile, Run
from components.data.reader import Reader
from components.data.stream import TokenStream
from components.errors import ConfigError
from components.jobs import ENDING, HANDOVER, NOTICE, Job, Rank
from components.records import Artifact
from components.reliability import heartbeat, metadata, preemption
from components.reliability.elastic import Config as Elastic
from components.reliability.elastic import Supply, most_that_fit, number_in
from components.reliability.finding import Attempt
from components.reliability.heartbeat import Beat
from components.reliability.preemption import Config, Listener
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.training.job import job_for, numbers_of_ranks

QUICK = Limits(backoff_seconds=0.0, poll_seconds=0.05)


@pytest.mark.parametrize(
    ("capacity", "ranks"), [(0, None), (1, None), (2, 2), (3, 2), (7, 4), (8, 8), (100, 8)]
)
def test_the_most_ranks_that_have_room_and_divide_the_batch_are_taken(
    capacity: int, ranks: int | None
) -> None:
    config = Elastic(least=2, most=8, capacity="nowhere")
    assert most_that_fit(capacity, config, [1, 2, 4, 8, 16]) == ranks


def test_numbers_of_ranks_fill_whole_nodes_and_divide_the_batch() -> None:
    run = Run.model_validate({"training": {"batch_size": 24}})
    assert numbers_of_ranks(run, Profile.model_validate("laptop")) == [1, 2, 3, 4, 6, 8, 12, 24]
    assert numbers_of_ranks(run, Profile.model_validate("slurm")) == [4, 8, 12, 24]


def test_a_capacity_that_is_no_number_is_told_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "capacity"
    place.write_text("2\n")
    supply = Supply(Config(), Elastic(capacity=str(place), poll_seconds=0.01, settle_seconds=0), [1, 2, 4])
    assert supply.wait() == 2
    place.write_text("many")
    assert supply.wait() == 2
    assert "holds 'many'" in caplog.text
    with pytest.raises(ConfigError, match="one whole number"):
        number_in("many", str(place))


def test_a_running_job_is_asked_to_follow_a_capacity_that_has_settled(tmp_path: Path) -> None:
    place = tmp_path / "capacity"
    place.write_text("2")
    supply = Supply(Config(), Elastic(capacity=str(place), poll_seconds=0.01, settle_seconds=0.1), [1, 2, 4])
    job = Job("a", "b", {}, tmp_path, processes=supply.wait() or 0)
    place.write_text("1")
    wishes, until = [], time.monotonic() + 5
    while (not wishes or wishes[-1] is None) and time.monotonic() < until:
        wishes.append(supply.wish(job))
        time.sleep(0.01)
    assert wishes.count(None) >= 5, "it was asked at once"
    assert wishes[-1] == "there is room for 1 ranks, and the job has 2"


def test_a_job_waits_while_its_machine_is_to_be_taken(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.write_text("terminate at noon")
    supply = Supply(Config(notice=str(notice)))
    threading.Timer(0.3, notice.unlink).start()
    started = time.monotonic()
    assert supply.wait() is None
    assert 0.2 < time.monotonic() - started < 5


class Cloud(BaseHTTPRequestHandler):
    """A metadata service like that of AWS: no token, no answer."""

    notice = ""

    def do_PUT(self) -> None:
        self._say(200, "secret" if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else "")

    def do_GET(self) -> None:
        if self.headers.get(metadata.TOKEN_HEADER) != "secret":
            self._say(401, "")
        else:
            self._say(200 if Cloud.notice else 404, Cloud.notice)

    def _say(self, code: int, text: str) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Cloud) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
        Cloud.notice = ""


def test_a_metadata_address_tells_of_a_notice_by_no_longer_answering_404(cloud: str) -> None:
    config = Config(notice=f"{cloud}/spot/instance-action", token_url=f"{cloud}/token", says="terminate")
    assert preemption.told(config) is None
    Cloud.notice = '{"action": "hibernate"}'
    assert preemption.told(config) is None
    Cloud.notice = '{"action": "terminate"}'
    assert preemption.told(config) == '{"action": "terminate"}'
    assert preemption.told(config.model_copy(update={"enabled": False})) is None
    with pytest.raises(OSError, match="401"):
        preemption.told(config.model_copy(update={"token_url": None}))


def test_an_address_that_does_not_answer_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(notice="http://127.0.0.1:9/nobody")
    watched = metadata.Watched(lambda: preemption.told(config), 0.0)
    assert watched.now() is None
    assert watched.now() is None
    assert caplog.text.count("nothing new is known of this machine") == 1


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    """One that has beaten, in a job's folder."""
    rank = Rank(0, 2, tmp_path)
    rank.heartbeat.beat(3, "forward")
    return rank


def test_a_rank_hears_what_lies_in_the_jobs_folder_and_hands_over(rank: Rank) -> None:
    listener = Listener(rank, Config())
    try:
        assert not listener.heard()
        first = preemption.ask(rank.folder, "there is room for 1")
        assert preemption.ask(rank.folder, "something else") == first, "the first one stands"
        assert listener._heard.wait(5)
        listener.hand_over(7, "checkpoints/step-000007")
        left = preemption.handed_over(rank.folder)
        assert left is not None
        assert (left.step, left.notice.why) == (7, "there is room for 1")
        assert 0 <= left.seconds < 5
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        listener._heard.set()


def test_what_ends_a_job_is_no_notice(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(preemption.stacks, "belongs", lambda pid, folder: pid != 1)
    listener = Listener(rank, Config(enabled=False))
    (rank.folder / ENDING).touch()
    assert not listener._is_notice(), "the launcher said that it ends the job"
    (rank.folder / ENDING).unlink()
    gone = heartbeat.LAYOUT.pack(1, 3, 2, time.time())
    (rank.folder / "beats" / "rank-00001").write_bytes(gone)
    assert not listener._is_notice(), "torchrun ends what is left"
    (rank.folder / "beats" / "rank-00001").unlink()
    assert listener._is_notice()
    assert listener.heard()


def test_a_new_attempt_starts_without_the_notice_of_the_one_before(rank: Rank) -> None:
    for name in (NOTICE, HANDOVER, ENDING):
        (rank.folder / name).touch()
    Job("a", "b", {}, rank.folder, 1).prepare()
    assert not any((rank.folder / name).exists() for name in (NOTICE, HANDOVER, ENDING))


@pytest.mark.slow
def test_a_job_told_in_time_goes_on_with_fewer_ranks_and_no_sample_is_lost_or_repeated(
    small_shards: Path, tmp_path: Path
) -> None:
    """SIGTERM to torchrun, as a cloud's agent sends it, when one of two machines is taken."""
    run = Run.model_validate(
        {
            "model": {"hidden_size": 32, "num_layers": 2, "intermediate_size": 64, "context_length": 64},
            "training": {"steps": 40, "batch_size": 4, "checkpoint_every": 1000, "evaluate_every": 1000},
        }
    )
    capacity = tmp_path / "capacity"
    capacity.write_text("2")
    profile = Profile.model_validate("laptop").model_copy(update={"processes": 2})
    storage = profile.storage.model_copy(update={"root": str(tmp_path / "runs")})
    profile = profile.model_copy(update={"storage": storage})
    shards = Artifact(name="shards", url=str(small_shards), digest="")
    jobs: list[Job] = []
    struck: list[int] = []

    def attempt(next_: Attempt) -> Job:
        jobs.append(replace(job_for(run, profile, shards, next_), target="case_studies._witnessed_train"))
        return jobs[-1]

    def take_one(beats: list[Beat]) -> None:
        if not struck and len(beats) == 2 and min(beat.step for beat in beats) >= 5:
            struck.append(min(beat.step for beat in beats))
            capacity.write_text("1")
            os.kill(psutil.Process(beats[0].pid).ppid(), signal.SIGTERM)

    elastic = Elastic(capacity=str(capacity))
    supply = Supply(profile.reliability.preemption, elastic, numbers_of_ranks(run, profile))
    outcome = supervise(attempt, profile.launcher, QUICK, take_one, supply=supply)
    (fault,) = outcome.faults
    assert (fault.kind, fault.recovered, outcome.incidents) == ("preemption", True, [])
    assert [job.processes for job in jobs] == [2, 1]
    assert outcome.result["first_step"] == fault.step, "no step was lost"
    assert fault.step is not None
    assert struck[0] <= fault.step < 40
    consumed: Counter[tuple[int, str]] = Counter()
    for number in range(2):
        for line in place(jobs[0].folder, number).read_text().splitlines():
            step, seen = json.loads(line)
            consumed.update((step, row) for row in seen)
    with Reader(str(small_shards)) as reader:
        stream = TokenStream(reader, "train", sequence_length=64, batch_size=4, seed=run.seed)
        wanted = Counter((n + 1, row) for n in range(40) for row in rows(stream.batch(n)))
    assert consumed == wanted
