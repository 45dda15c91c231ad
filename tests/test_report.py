"""The report shows what the records and events of a run hold, and says what is missing."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from components import storage
from components.observability import picture, plots, readings, report
from components.records import Artifact, Fault, Record, RunFolder, Verdict
from maturity import scoring
from maturity.evidence import Evidence

START = datetime(2026, 12, 1, 4, 0, tzinfo=UTC)
SECONDS = {"shard_dataset": 41, "pretrain": 148, "sft": 37, "rl": 92, "deploy": 64, "assess": 3}


def artifact(name: str) -> Artifact:
    return Artifact(name=name, url=f"runs/demo/{name}", digest=hashlib.sha256(name.encode()).hexdigest())


def verdicts(*gates: str, failed: str = "") -> list[Verdict]:
    return [Verdict(gate=g, passed=g != failed, reason="held-out loss 2.66, allowed 2.70") for g in gates]


def record(stage: str, reads: list[str], makes: list[str], **extra: Any) -> Record:
    order = list(SECONDS)
    stages = order[: order.index(stage)] if stage in order else []
    begin = START + timedelta(seconds=sum(SECONDS[one] + 2 for one in stages))
    return Record(
        **{
            "stage": stage,
            "run_id": "demo-3f2a91bc",
            "status": "completed",
            "profile": "laptop",
            "git_commit": "0123456789ab",
            "config_digest": "c" * 64,
            "inputs": [artifact(name) for name in reads],
            "outputs": [artifact(name) for name in makes],
            "device_seconds": 2.0 * SECONDS.get(stage, 60),
            "cost": 2.0 * SECONDS.get(stage, 60) / 3600 * 0.02,
            "started_at": begin,
            "ended_at": begin + timedelta(seconds=SECONDS.get(stage, 60)),
            **extra,
        }
    )


def load_test_metrics() -> dict[str, Any]:
    waits = [abs(random.Random(n).gauss(0.041, 0.012)) for n in range(48)]
    return {
        "requests": 48,
        "served": 48,
        "requests_per_second": 3.92,
        "tokens_per_second": 125.4,
        "first_token_seconds": {"p50": 0.041, "p95": 0.06, "p99": 0.071},
        "rows": [{"first_token": wait} for wait in waits],
    }


def spread(mean: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - 0.04, "high": mean + 0.04}


def whole_run() -> list[Record]:
    """Records of a run in which every stage went well, after a stall in pre-training."""
    stall = Fault(
        kind="stall",
        detail="rank 1 stood in forward",
        at=START,
        rank=1,
        step=310,
        seconds_to_detect=4.1,
        seconds_to_recover=11.5,
        recovered=True,
    )
    before = {"reward": spread(0.31), "parse_share": spread(0.62), "distinct_share": 0.98}
    after = {"reward": spread(0.58), "parse_share": spread(0.91), "distinct_share": 0.97}
    rise = {"reward": spread(0.27), "parse_share": spread(0.29)}
    text = "def is_even(n):\n    # Tell whether a number is even.\n"
    pair = {"prompt": text, "before": "    return n n\n", "after": "    return n % 2 == 0\n"}
    rewards = {"kl": 0.081, "before": before, "after": after, "rise": rise}
    rewards |= {"samples": [pair, pair], "prompts": 256}
    timed = {"data": 2.0, "forward": 40.0, "backward": 70.0, "optimizer": 20.0}
    bar = {"shards": 41, "unigram_cross_entropy": 5.9, "tokens": {"train": 1_204_331, "held_out": 61_002}}
    made = [
        record("shard_dataset", [], ["shards"], metrics=bar, verdicts=verdicts("documents_are_clean")),
        record(
            "pretrain",
            ["shards"],
            ["checkpoint"],
            faults=[stall],
            metrics={"seconds_by_phase": timed, "held_out_loss": 2.66},
            verdicts=verdicts(
                "files_match_manifest", "weights_are_finite", "loss_reproduces", "beats_a_unigram_model"
            ),
        ),
        record("sft", ["checkpoint", "shards"], ["sft_policy"], verdicts=verdicts("weights_are_finite")),
        record(
            "rl",
            ["sft_policy", "shards"],
            ["policy"],
            metrics=rewards,
            verdicts=verdicts("reward_improved", "policy_did_not_cheat"),
        ),
        record(
            "deploy",
            ["policy"],
            ["weights", "deployment"],
            metrics={"load": load_test_metrics()},
            verdicts=verdicts("answers_are_known", "logprobs_match_trainer", "load_is_served"),
        ),
    ]
    card = scoring.score(Evidence.of(one.model_dump(mode="json") for one in made))
    return [*made, record("assess", [], ["scorecard"], metrics=card.as_dict())]


def events_of_training(rank: int) -> Iterator[dict[str, Any]]:
    noise = random.Random(rank)
    for step in range(1, 1201, 4):
        loss = 4.2 * math.exp(-step / 180) + 2.6 + noise.gauss(0, 0.1)
        seconds = {"data": 0.002, "forward": 0.021, "backward": 0.035 + 0.002 * rank, "optimizer": 0.011}
        yield {"kind": "step", "step": step, "loss": loss, "seconds": seconds}
    for step in range(200, 1201, 200):
        yield {"kind": "evaluate", "step": step, "held_out_loss": 4.2 * math.exp(-step / 180) + 2.66}


def events_of_alignment() -> Iterator[dict[str, Any]]:
    noise = random.Random(0)
    for step in range(60):
        reward = 0.31 + 0.27 * step / 60 + noise.gauss(0, 0.04)
        yield {
            "kind": "update",
            "step": step,
            "reward": reward,
            "parse_share": 0.6 + step / 200,
            "kl": 0.0015 * step,
        }


def write_events(folder: RunFolder, stage: str, rank: int, happened: Iterator[dict[str, Any]]) -> None:
    lines = [json.dumps({"at": float(at), "rank": rank, **event}) for at, event in enumerate(happened)]
    storage.write_text(folder.path("events", stage, f"rank-{rank:05d}.jsonl"), "\n".join(lines) + "\n")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder on disk with every record and the events of training and alignment."""
    folder = RunFolder(str(tmp_path), "demo-3f2a91bc")
    for one in whole_run():
        folder.write(one)
    for rank in (0, 1):
        write_events(folder, "pretrain", rank, events_of_training(rank))
    write_events(folder, "rl", 0, events_of_alignment())
    return folder


class Outline(HTMLParser):
    """Collects what a page would fetch, and whether its tags balance."""

    VOID = frozenset({"meta", "br", "link", "img", "hr", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"


def read_page(url: str) -> tuple[str, Outline]:
    text, outline = storage.read_text(url), Outline()
    outline.feed(text)
    return text, outline


def test_the_report_is_one_page_that_fetches_nothing_and_runs_no_script(folder: RunFolder) -> None:
    url = report.write(folder)
    text, outline = read_page(url)
    assert url.endswith("demo-3f2a91bc/report/index.html")
    assert outline.open == []
    assert outline.fetched == []
    assert "<script" not in text
    assert "@import" not in text
    assert len(outline.ids) == len(set(outline.ids))
    assert set(re.findall(r'url\(([^)]+)\)|xlink:href="([^"]+)"', text)) <= {
        pair for pair in re.findall(r'url\((#[^)]+)\)|xlink:href="(#[^"]+)"', text)
    }


def test_the_report_shows_every_part_of_a_whole_run(folder: RunFolder) -> None:
    text, _ = read_page(report.write(folder))
    for expected in (
        "promoted",
        "all 11 gate verdicts passed",
        "Held-out loss ended 3.2",
        "Backward takes 51% of a step",
        "Reward rose from",
        "First token: half within",
        "0.27 to 0.35",
        "+0.27",
        "On 256 held-out prompts",
        "return n % 2 == 0",
        "125.4",
        "rank 1, step 310",
        "noticed after 4.1 s",
        "The deployment goes back to shards",
        "Not proven",
        "Run `stanchion case silent_stall`",
        "not covered yet",
        "0123456789ab",
        "2.5 %",
    ):
        assert expected in text, expected
    assert text.count("<svg") == 5
    assert f"<title>{artifact('policy').digest}</title>" in text


def test_a_refused_run_says_what_blocked_it(folder: RunFolder) -> None:
    refused = record(
        "rl",
        ["sft_policy"],
        [],
        status="refused",
        reason="GateRefused: policy refused by reward_improved: 0.31 is not above 0.33",
        verdicts=verdicts("reward_improved", "policy_did_not_cheat", failed="reward_improved"),
    )
    folder.write(refused)
    storage.local_path(folder.path("records", "deploy.json")).unlink()
    text, _ = read_page(report.write(folder))
    assert '<span class="word blocked">blocked</span>' in text
    assert "Reinforce: reward_improved: held-out loss 2.66, allowed 2.70" in text
    assert "0.31 is not above 0.33" in text
    assert "has not run" in text
    assert "✗" in text


@pytest.mark.parametrize("stage", SECONDS)
def test_a_missing_stage_is_shown_and_never_an_error(stage: str, folder: RunFolder) -> None:
    storage.local_path(folder.path("records", f"{stage}.json")).unlink()
    text, outline = read_page(report.write(folder))
    assert outline.open == []
    assert "has not run" in text


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    text, outline = read_page(report.write(RunFolder(str(tmp_path), "nothing")))
    assert outline.open == []
    assert "unfinished" in text
    assert "stanchion run shard_dataset" in text


def test_records_with_strange_metrics_do_not_break_the_report(folder: RunFolder) -> None:
    strange = {"load": {"rows": [{"first_token": None}]}, "before": 3, "samples": "none", "after": None}
    folder.write(record("deploy", ["policy"], [], metrics=strange))
    folder.write(record("rl", ["sft_policy"], [], metrics=strange))
    text, _ = read_page(report.write(folder))
    assert "Nothing was recorded for this figure." in text


def test_text_of_a_model_cannot_become_markup(folder: RunFolder) -> None:
    pair = {"prompt": "<script>alert(1)</script>", "before": "</pre>", "after": "&"}
    folder.write(record("rl", ["sft_policy"], ["policy"], metrics={"samples": [pair]}))
    text, outline = read_page(report.write(folder))
    assert "<script>" not in text
    assert outline.open == []


def test_the_same_numbers_draw_the_same_bytes() -> None:
    points = [(float(step), 5.0 - step / 100) for step in range(100)]
    first = plots.loss_curve(points, points[::10], 5.9)
    assert first == plots.loss_curve(points, points[::10], 5.9)
    assert "<text" in first
    assert "DejaVu" not in first
    ElementTree.fromstring(first)


def test_a_step_done_twice_counts_as_it_was_done_last() -> None:
    events = [{"kind": "step", "rank": 0, "step": 1, "loss": loss} for loss in (5.0, 4.0)]
    assert readings.points(
        [*events, {"kind": "step", "rank": 1, "step": 1, "loss": 9.0}], "step", "loss"
    ) == [(1.0, 4.0)]


def test_time_between_stages_is_wall_time_that_no_stage_accounts_for() -> None:
    shares = report.time_shares(whole_run())
    assert shares["wall"] == sum(SECONDS.values()) + 10
    assert shares["between"] == pytest.approx(10)


@pytest.mark.parametrize(("seconds", "text"), [(3.21, "3.2 s"), (59.7, "1 min 0 s"), (7322, "2 h 2 min")])
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert report.duration(seconds) == text


def test_the_picture_of_a_chain_shows_stages_and_verdicts(folder: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "chain.svg"
    assert picture.main([folder.url, str(out)]) == 0
    text = out.read_text()
    ElementTree.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    for expected in (
        "Pre-train",
        "148 s",
        "1,204,331 tokens",
        "loss 2.66 held out",
        "parses 62% → 91%",
        "beats a unigram model",
        "logprobs match trainer",
    ):
        assert expected in text


def test_a_picture_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert picture.main([str(tmp_path / "absent"), str(tmp_path / "out.svg")]) == 1
    assert "no records under" in capsys.readouterr().err


def test_assess_scores_anew_when_a_record_changed_and_only_then(prefect_server: None, tmp_path: Path) -> None:
    from components.config import configure, run_folder
    from flows.assess import assess

    what, where = configure("laptop", [f"profile.storage.root={tmp_path}"])
    folder = run_folder(what, where)
    for one in whole_run():
        if one.stage != "assess":
            folder.write(one.model_copy(update={"run_id": what.id}))
    first = assess(what, where)
    again = assess(what, where)
    assert again == first
    known, applicable = first.metrics["coverage"]["known"], first.metrics["coverage"]["applicable"]
    assert 6 <= known < applicable
    assert "promoted" in storage.read_text(folder.path("report", "index.html"))

    drill = record(
        "case_study.silent_stall",
        [],
        [],
        faults=whole_run()[1].faults,
        verdicts=verdicts("right rank named"),
    )
    RunFolder(str(tmp_path), "case-studies").write(drill)
    drilled = assess(what, where)
    assert drilled.metrics["coverage"] == {"known": known + 1, "applicable": applicable}
    assert storage.read_text(folder.path("report", "scorecard.txt")).startswith("Platform maturity: L0")
