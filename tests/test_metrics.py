"""Metrics of jobs, scraped over HTTP by a process that is none of their ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from components.errors import ConfigError
from components.observability.events import EventLog
from components.observability.metrics.exporter import FORGET_SECONDS, serving
from components.reliability import journal
from components.reliability.heartbeat import Heartbeat

INFRA = Path(__file__).parent.parent / "infra"
RULES = INFRA / "prometheus" / "rules.yml"
BOARDS = sorted((INFRA / "grafana").glob("*.json"))
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


def test_a_scrape_of_1024_ranks_stays_small(tmp_path: Path) -> None:
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
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page = answer.read()
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    assert series < 1024 * 16 + 50
    assert len(page) < 2_000_000


TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?(?![\w.]))|(?P<range>\[\d+[smhd]\])"""
    r"""|(?P<word>[a-zA-Z_]\w*)|(?P<op>=~|!~|!=|==|<=|>=|[-+*/<>=])|(?P<mark>[(){},]))"""
)
FUNCTIONS = {
    *("absent", "abs", "avg", "avg_over_time", "changes", "count", "delta", "increase", "max", "min"),
    *("quantile", "rate", "scalar", "sort_desc", "sum", "time", "topk"),
}
GROUPING, SETS = {"by", "on", "without", "ignoring", "group_left", "group_right"}, {"and", "or", "unless"}
OVER_TIME = {"rate", "increase", "delta", "changes", "avg_over_time"}
LABELS = {"job", "rank", "phase", "kind", "cause"}
SELECTOR = re.compile(r"\b(stanchion_\w+|up)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"')


def tokens(expression: str) -> list[tuple[str, str]]:
    """Kind and text; a character that no token begins with fails."""
    found, at = [], 0
    while expression[at:].strip():
        match = TOKEN.match(expression, at)
        assert match is not None, f"what is {expression[at:][:20]!r} in {expression!r}?"
        kind = match.lastgroup or ""
        found.append((kind, match[kind]))
        at = match.end()
    return found


def unsound(expression: str) -> list[str]:
    """What is wrong with a PromQL expression: brackets, unknown words, operands or operators in a row.

    Not checked, since no parser of PromQL is here: types (a range where an instant is due, apart from
    functions over time), precedence, and whether label sets match across operators.
    """
    wrong, open_, before = [], [], ("op", "")
    read = tokens(expression)
    for position, (kind, text) in enumerate(read):
        after = read[position + 1][1] if position + 1 < len(read) else ""
        if text in "({":
            open_.append(text)
        elif text in ")}":
            if not open_ or {"(": ")", "{": "}"}[open_.pop()] != text:
                wrong.append(f"{text} closes nothing")
        elif kind == "word" and not text.startswith("stanchion_") and text not in {"up", "Inf"}:
            known = SETS | GROUPING | (FUNCTIONS if after in ("(", "by") else LABELS)
            if text not in known:
                wrong.append(f"unknown word {text}")
        if kind == "range" and not re.search(rf"(?:{'|'.join(OVER_TIME)})\([^()]*$", _until(read, position)):
            wrong.append(f"{text} outside a function over time")
        ends = before[0] in ("string", "number", "range") or before[1] in (")", "}")
        begins = kind == "number" or text.startswith("stanchion_")
        if ends and begins and not _is_grouping(read, position):
            wrong.append(f"no operator between {before[1]} and {text}")
        if before[0] == kind == "op" and text != "-":
            wrong.append(f"{before[1]} and {text} in a row")
        before = (kind, text)
    return wrong + [f"{one} is never closed" for one in open_]


def _until(read: list[tuple[str, str]], position: int) -> str:
    return "".join(text for _, text in read[:position])


def _is_grouping(read: list[tuple[str, str]], position: int) -> bool:
    """Whether the bracket that has just closed belongs to `by (...)`, `on (...)` or `group_left (...)`."""
    before = _until(read, position)
    return re.search(rf"(?:{'|'.join(GROUPING)})\([^()]*\)$", before) is not None


def selects(selector: tuple[str, str], series: list[tuple[str, Mapping[str, str]]]) -> bool:
    """Whether any series that was scraped is meant."""
    name, braces = selector
    matchers = MATCHER.findall(braces.replace("$job", JOB).replace("$rank", ".*"))
    for found, labels in series:
        if found == name and all(_fits(labels.get(label, ""), how, value) for label, how, value in matchers):
            return True
    return False


def _fits(value: str, how: str, wanted: str) -> bool:
    hit = re.fullmatch(wanted, value) is not None if "~" in how else value == wanted
    return hit != how.startswith("!")


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Mapping[str, str]]]:
    """Names and labels of a scrape of a job to which everything has happened once."""
    root = tmp_path_factory.mktemp("live")
    job = WrittenJob(root / "demo-1a2b" / "scratch" / "pretrain")
    job.step(1, device_memory_bytes=10**9)
    job.saved(1)
    with serving(root, port=0) as port:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    job.close()
    samples = [one for family in text_string_to_metric_families(answer) for one in family.samples]
    return [*((one.name, one.labels) for one in samples), ("up", {"job": "stanchion"})]


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """Every expression that is shipped: where, and what."""
    found = [(rule["alert"], rule["expr"]) for rule in alerts()]
    for path in BOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            found += [(f"{path.stem}: {panel['title']}", one["expr"]) for one in panel.get("targets", [])]
        found += [(f"{path.stem}: {one['name']}", one["expr"]) for one in board["annotations"]["list"]]
        for one in board["templating"]["list"]:
            if one["type"] == "query":
                named = re.fullmatch(r"label_values\((.+), (\w+)\)", one["definition"])
                assert named is not None, one["definition"]
                assert named[2] in LABELS
                found.append((f"{path.stem}: ${one['name']}", named[1]))
    return found


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=[where for where, _ in expressions()])
def test_every_expression_is_sound_and_all_it_selects_is_in_a_live_scrape(
    where: str, expression: str, live: list[tuple[str, Mapping[str, str]]]
) -> None:
    assert unsound(expression) == []
    chosen = SELECTOR.findall(expression)
    assert chosen, "selects nothing"
    if where == "StanchionSilentCorruption":
        assert {labels.get("kind") for _, labels in live} >= {"corruption", "replica_divergence"}
    assert [one for one in chosen if not selects(one, live)] == []


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("sum by (job) (rate(stanchion_steps_total[5m])", "never closed"),
        ("stanchion_step > > 3", "in a row"),
        ("rate(x) 3", "unknown word x"),
        ("stanchion_step[5m] > 3", "outside a function"),
        ("summ(stanchion_step)", "unknown word summ"),
        ("max by (jobb) (stanchion_step)", "unknown word jobb"),
        ("(stanchion_step) 3", "no operator"),
    ],
)
def test_an_expression_that_is_not_sound_is_seen(expression: str, said: str) -> None:
    assert any(said in one for one in unsound(expression)), unsound(expression)


def test_what_a_live_job_does_not_export_is_selected_by_nothing(
    live: list[tuple[str, Mapping[str, str]]],
) -> None:
    assert selects(("stanchion_loss", '{job="$job"}'), live)
    assert not selects(("stanchion_los", ""), live)
    assert not selects(("stanchion_phase_seconds_total", '{phase="inference"}'), live)


def test_every_alert_has_a_runbook_that_says_what_it_means_where_to_look_and_what_to_do() -> None:
    found = alerts()
    assert len({rule["alert"] for rule in found}) == len(found) >= 8
    for rule in found:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule["for"]), rule["alert"]
        assert rule["annotations"]["summary"]
        runbook = rule["annotations"]["runbook"]
        assert re.search(r"^Means: .+^Look first: .+^Do: .+", runbook, re.S | re.M), rule["alert"]
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= LABELS


def test_prometheus_is_told_to_keep_our_labels_and_loads_the_rules() -> None:
    config = yaml.safe_load((INFRA / "prometheus" / "prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    assert scrape["honor_labels"] is True, "the label `job` would be the scraper's"
    assert scrape["job_name"] == "stanchion", "as the alert of a dead exporter has it"
    assert config["rule_files"] == [RULES.name]


@pytest.mark.parametrize("path", BOARDS, ids=[path.stem for path in BOARDS])
def test_a_dashboard_is_one_that_grafana_loads(path: Path) -> None:
    board = json.loads(path.read_text())
    assert re.fullmatch(r"[a-z-]{3,40}", board["uid"])
    assert board["schemaVersion"] >= 36
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
            assert len({one["refId"] for one in panel["targets"]}) == len(panel["targets"])
    other = {json.loads(one.read_text())["uid"] for one in BOARDS}
    assert all(link["url"].split("?")[0].removeprefix("/d/") in other for link in board["links"])


def test_infra_holds_data_and_no_python() -> None:
    assert list(INFRA.rglob("*.py")) == []
