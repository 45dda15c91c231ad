"""The race of loaders: one corpus for all, honest ratios, and nothing said of a loader that was not there."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from case_studies.benchmarks import (
    checkpoints,
    corpus,
    data_loaders,
    environments,
    picture,
    ratios,
    tokenise_and_shard,
)
from case_studies.benchmarks.data_loaders import ENTRIES, Bench, Entry
from case_studies.benchmarks.worker import Silent, Worker, ours
from components import plugins

PEERS = plugins.names("case_studies.benchmarks.peers")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of the two that need no installation, and of one whose environment cannot be made."""
    chosen = tuple(one for one in ENTRIES if one.name in ("json_lines", "stanchion", "webdataset"))
    folder = tmp_path_factory.mktemp("bench")
    return Bench(folder, documents=1500, rounds=2, uv="/no/such/uv", entries=chosen).run()


def test_the_corpus_follows_from_its_seed_and_is_read_back_as_drawn(tmp_path: Path) -> None:
    first, again = (corpus.write(tmp_path / name / "c.jsonl", documents=500, seed=7) for name in "ab")
    other = corpus.write(tmp_path / "c" / "c.jsonl", documents=500, seed=8)
    assert first == again
    assert first["digest"] != other["digest"]
    texts = list(corpus.read(tmp_path / "a" / "c.jsonl"))
    assert texts == list(corpus.draw(500, 7))
    assert sum(len(text.encode()) for text in texts) == first["bytes"]
    assert 900 < first["mean_bytes"] < 1250


def test_the_digest_forgives_order_and_nothing_else(tmp_path: Path) -> None:
    texts = list(corpus.draw(100, 1))
    shuffled = random.Random(0).sample(texts, len(texts))
    assert _digest(shuffled) == _digest(texts)
    assert _digest(texts[1:]) != _digest(texts)
    assert _digest([*texts[1:], texts[1]]) != _digest(texts)


def _digest(texts: list[str]) -> str:
    digest = corpus.Digest()
    digest.add(texts)
    return digest.hex()


def test_a_loader_that_is_there_delivers_the_whole_corpus_in_every_mode(found: dict[str, Any]) -> None:
    loader = found["loaders"]["stanchion"]
    for workers in ("0", "2"):
        epochs = loader["epochs"][workers]
        assert len(epochs) == found["rounds"] == 2
        assert all(one["samples"] == found["corpus"]["documents"] for one in epochs)
        assert all(one["bytes"] == found["corpus"]["bytes"] for one in epochs)
    assert loader["resume"]["exact"]
    assert loader["resume"]["samples"] == found["corpus"]["documents"]
    assert loader["resume"]["state_bytes"] < 1024
    assert set(found["loaders"]["json_lines"]["epochs"]) == {"0"}


def test_a_loader_that_is_absent_has_a_reason_and_no_figures(found: dict[str, Any]) -> None:
    loader = found["loaders"]["webdataset"]
    assert "/no/such/uv" in loader["absent"]
    assert not loader.get("epochs")
    assert not loader["medians"]
    assert "resume" not in loader


def test_a_bar_that_could_not_be_measured_does_not_hold(found: dict[str, Any]) -> None:
    assert [bar["measured"] for bar in found["bars"]] == [None] * len(ratios.BARS)
    assert not any(bar["holds"] for bar in found["bars"])


def test_figures_and_picture_are_kept_together(found: dict[str, Any], tmp_path: Path) -> None:
    data_loaders.keep(found, tmp_path)
    kept = json.loads((tmp_path / "data_loaders.json").read_text())
    assert kept == json.loads(json.dumps(found))
    assert {"corpus", "machine", "versions", "commit", "at", "bars", "loaders"} <= set(kept)
    drawn = (tmp_path / "data_loaders.svg").read_text()
    said = " ".join(ElementTree.fromstring(drawn).itertext())
    assert "Stanchion, verified" in said
    assert "absent: webdataset" in said
    assert kept["at"][:10] in said


def test_the_title_says_what_was_measured_and_no_more(found: dict[str, Any]) -> None:
    assert picture.title(found) == "Documents read per CPU-second"
    bars = [{"over": "stanchion", "under": "litdata", "measured": 1.23}]
    assert picture.title({"bars": bars}) == "Checking every document, Stanchion reads at 1.2x litdata"


def test_ratios_are_taken_within_a_round() -> None:
    """The second round was twice as busy: of the medians alone another ratio would follow."""
    over = [_epoch(1.0), _epoch(2.0), _epoch(1.0)]
    under = [_epoch(2.0), _epoch(4.0), _epoch(8.0)]
    assert ratios.ratio(over, under) == 2.0
    assert ratios.ratio(over, under, "wall") == 1.0
    assert ratios.middle(over) == 100.0


def test_a_bar_holds_from_its_least_on() -> None:
    loaders = {
        "stanchion": {"epochs": {"0": [_epoch(1.0)]}},
        "litdata": {"epochs": {"0": [_epoch(1.0)]}},
        "webdataset": {"epochs": {"0": [_epoch(4.9)]}},
    }
    assert [(bar["measured"], bar["holds"]) for bar in ratios.judged(loaders)] == [(1.0, True), (4.9, False)]


def _epoch(cpu: float) -> dict[str, Any]:
    return {"samples": 100, "bytes": 1000, "cpu": cpu, "wall": 1.0}


def test_a_loader_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"folder": tmp_path / "none", "workers": 0, "verify": False}
    with (
        Worker(ours(), tmp_path / "log", peer="json_lines", **settings) as worker,
        pytest.raises(Silent, match="FileNotFoundError"),
    ):
        worker.ask("check", epoch=1)


def test_a_loader_that_loses_a_text_is_no_loader_of_the_corpus(tmp_path: Path) -> None:
    entry = Entry("json_lines", "json_lines", "json.loads", workers=False, resumes=False)
    bench = Bench(tmp_path, documents=50, rounds=1, uv="", entries=(entry,))
    bench.corpus = {**bench.corpus, "digest": "0" * 32}
    assert "not those of the corpus" in bench.run()["loaders"]["json_lines"]["absent"]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_tells_its_pins_and_imports_nothing_heavy(name: str) -> None:
    peer = plugins.load("case_studies.benchmarks.peers", name)
    assert all("==" in package for package in peer.PACKAGES[:1])
    assert all(callable(getattr(peer, wanted)) for wanted in ("build", "ready", "open_folder"))


def test_what_needs_no_packages_runs_where_we_run(tmp_path: Path) -> None:
    assert environments.python_of((), tmp_path, "/no/such/uv") == ours()


def test_the_writer_is_compared_with_the_tokenizer_alone_in_the_same_turn() -> None:
    turns = [_turn(1.0, 2.0), _turn(4.0, 5.0), _turn(2.0, 20.0)]
    assert tokenise_and_shard.shares(turns) == {"wall": 0.5, "cpu": 0.25}


def _turn(alone: float, written: float) -> tokenise_and_shard.Turn:
    return {"alone": {"wall": alone, "cpu": alone}, "written": {"wall": written, "cpu": 2 * written}}


def test_tokenizer_and_writer_are_timed_on_the_same_documents() -> None:
    found = tokenise_and_shard.measured(documents=400, rounds=2)
    assert found["documents"] == 400
    assert found["bytes"] == sum(map(len, corpus.draw(400, corpus.SEED)))
    assert len(found["turns"]) == 2
    assert all(side["wall"] > 0 and side["cpu"] > 0 for turn in found["turns"] for side in turn.values())
    assert found["holds"] == (found["share_of_cpu"] >= found["least"] == 0.9)


def test_every_way_to_save_is_timed_on_the_same_state(tmp_path: Path) -> None:
    small = {
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 64,
        "context_length": 64,
    }
    found = checkpoints.measured(tmp_path, model=small, vocabulary=300, rounds=1)
    assert set(found["rounds"][0]) == set(checkpoints.TITLES)
    assert all(0 < way["stalled"] <= way["total"] for way in found["rounds"][0].values())
    assert found["bytes"] == pytest.approx(14 * found["parameters"], rel=0.01)  # bf16, fp32, two moments
    assert list(tmp_path.iterdir()) == []
    told = {**found, "machine": {"processor": "two cores"}, "commit": "", "at": "2026-12-02"}
    assert "Stanchion" in checkpoints.drawn(told)
