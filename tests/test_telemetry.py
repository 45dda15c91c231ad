"""What every rank tells with every step: seconds by phase, waits for others, pace, utilisation, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from case_studies.benchmarks import telemetry
from components.config import Run
from components.jobs import Rank
from components.observability import readings
from components.records import Artifact
from components.reliability import heartbeat
from components.reliability.goodput import Window, account
from components.training.communication import CLOCK
from components.training.config import Model
from components.training.phases import Phases
from components.training.readout import Readout, peak_resident_bytes, resident_bytes
from components.training.utilisation import flops_per_token

LARGE = Model(hidden_size=12288, num_layers=96, num_heads=96, intermediate_size=49152, context_length=2048)


@pytest.fixture
def phases(tmp_path: Path) -> Iterator[Phases]:
    rank = Rank(1, 4, tmp_path)
    yield Phases(rank)
    rank.events.close()


@pytest.fixture
def lone_group(tmp_path: Path) -> Iterator[None]:
    """A real gloo group of one: its collectives run, and nobody is late."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    CLOCK.start()
    yield
    CLOCK.stop()
    dist.destroy_process_group()


@pytest.mark.usefixtures("lone_group")
def test_waits_inside_collectives_are_told_by_phase_and_are_part_of_its_seconds(phases: Phases) -> None:
    import torch
    import torch.distributed as dist

    phases.begin(3)
    with phases("forward"):
        time.sleep(0.02)
    with phases("backward"):
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))
        dist.barrier()
        dist.all_reduce(torch.ones(10), async_op=True).wait()
    told = phases.spent()
    assert told["communication"]["forward"] == 0.0 < told["communication"]["backward"]
    assert told["communication"]["backward"] <= told["seconds"]["backward"]
    assert told["seconds"]["forward"] >= 0.02


def test_a_clock_that_was_started_twice_counts_once_and_leaves_torch_as_it_was() -> None:
    from torch.distributed import Work

    before = Work.wait
    CLOCK.start()
    first = Work.wait
    CLOCK.start()
    assert Work.wait is first is not before
    CLOCK.stop()
    assert Work.wait is before


def test_evaluation_and_save_have_events_with_their_own_seconds(phases: Phases) -> None:
    phases.begin(1)
    for phase in ("forward", "evaluate", "checkpoint"):
        with phases(phase):
            time.sleep(0.002)
    assert set(phases.spent("evaluate")["seconds"]) == {"evaluate"}
    assert phases.spent("checkpoint", "flush")["seconds"]["checkpoint"] >= 0.002
    assert "communication" not in phases.spent(), "no clock runs, so nothing is said of waits"


def test_a_phase_inside_another_takes_its_seconds_from_it_and_the_beat_comes_back(phases: Phases) -> None:
    phases.begin(7)
    with phases("optimizer"):
        with phases("snapshot"):
            time.sleep(0.03)
            assert [beat.phase for beat in heartbeat.read(phases.rank.folder / "beats")] == ["snapshot"]
        assert [beat.phase for beat in heartbeat.read(phases.rank.folder / "beats")] == ["optimizer"]
    seconds = phases.seconds()
    assert seconds["snapshot"] >= 0.03
    assert seconds["optimizer"] > 0
    assert phases.total["snapshot"] + phases.total["optimizer"] <= phases.since_begin


def test_flops_are_those_of_the_closed_form_for_175_billion_parameters() -> None:
    """72 B s L h^2 (1 + s/6h + V/12hL), Korthikanti et al. 2022 (arXiv 2205.05198), derived another way."""
    hidden, layers, length, vocabulary = 12288, 96, 2048, 51200
    parameters = 12 * layers * hidden**2 + vocabulary * hidden
    published = 72 * layers * hidden**2 * (1 + length / (6 * hidden) + vocabulary / (12 * hidden * layers))
    assert flops_per_token(LARGE, parameters=parameters, vocab_size=vocabulary) == pytest.approx(published)


def test_an_embedding_that_is_only_looked_up_multiplies_nothing() -> None:
    untied = LARGE.model_copy(update={"tie_embeddings": False})
    tied = flops_per_token(LARGE, parameters=10**9, vocab_size=1000)
    more = flops_per_token(untied, parameters=10**9 + 1000 * 12288, vocab_size=1000)
    assert more == tied


def test_a_step_is_told_with_its_pace_utilisation_and_memory(phases: Phases) -> None:
    import torch

    model = Model()
    readout = Readout(
        phases, model, parameters=10**6, vocab_size=512, device=torch.device("cpu"), precision="fp32"
    )
    phases.begin(1)
    with phases("forward"):
        time.sleep(0.05)
    told = readout.of_step(tokens=100)
    assert 0 < told["tokens_per_second"] <= 2_000
    assert 0 < told["mfu"] < 1
    assert 50e6 < told["memory_bytes"] <= 1.01 * peak_resident_bytes()
    assert resident_bytes() > 50e6
    assert "device_memory_bytes" not in told


def test_a_figure_of_step_times_parts_waits_from_work_and_loses_no_second() -> None:
    seconds, waited = {"forward": 0.3, "backward": 0.5}, {"forward": 0.0, "backward": 0.2}
    event = {"kind": "step", "rank": 0, "seconds": seconds, "communication": waited}
    (parted,) = readings.step_seconds([event]).values()
    assert parted == pytest.approx({"forward": 0.3, "backward": 0.3, "communication": 0.2})
    assert sum(parted.values()) == pytest.approx(sum(seconds.values()))


def test_what_a_save_held_training_up_is_a_cause_of_loss_of_its_own() -> None:
    def step(number: int, at: float) -> dict[str, Any]:
        waited = {"backward": 0.4}
        return {
            "kind": "step",
            "step": number,
            "at": at,
            "seconds": {"backward": 0.5},
            "communication": waited,
        }

    save = {"kind": "save", "step": 1, "at": 2.0, "seconds": {"checkpoint": 0.7}}
    spent = account([Window(0.0, 4.0)], [step(1, 1.0), save, step(2, 3.0)])
    assert spent["checkpoint"] == pytest.approx(0.7)
    assert spent["useful"] == pytest.approx(1.0), "waits are part of the phases and are not counted again"
    assert sum(spent.values()) == pytest.approx(4.0)


def test_the_cost_of_telemetry_is_the_median_of_ratios_within_rounds_with_its_interval() -> None:
    one = telemetry.ratio([0.01] * 50 + [0.02] * 2 + [9.0] * 3)
    assert one == {"median": 0.01, "low": 0.01, "high": 0.01}, "a few busy moments move nothing"
    wide = telemetry.ratio([-0.1, 0.1] * 20)
    assert wide["low"] < 0 < wide["high"]


@pytest.mark.slow
def test_bare_steps_and_told_ones_take_turns_on_one_engine(small_shards: Path, tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_layers": 1, "intermediate_size": 64, "context_length": 64}
    run = Run(model=small, training={"held_out_sequences": 4})
    shards = Artifact(name="shards", url=str(small_shards), digest="0" * 64)
    found = telemetry.measured(tmp_path, run=run, rounds=4, shards=shards)
    assert found["world_size"] == 2
    assert all(seconds > 0 for seconds in found["step_seconds"].values())
    assert found["holds"] == (found["over_bare"]["telemetry"]["wall"]["median"] <= 0.02)
    assert 300 < found["event_bytes"] < 700, "a told step has its event, whatever side told it"
    assert found["seconds_alone"] < 0.002
    assert list(tmp_path.iterdir()) == []
    machine = {"processor": "two cores"}
    assert "telemetry" in telemetry.drawn({**found, "machine": machine, "commit": "", "at": "2026-12-03"})
