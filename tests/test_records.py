"""A stage runs once, leaves a record however it ends, and says what it rests on."""

from __future__ import annotations

import pytest

from components import storage
from components.errors import GateRefused, StageMissing
from components.records import Artifact, RunFolder, Verdict, open_stage


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


def stage_of(folder: RunFolder, settings: dict, inputs: list[Artifact] | None = None):
    return open_stage(
        folder,
        "pretrain",
        settings=settings,
        inputs=inputs or [],
        profile="laptop",
        devices=2,
        price_per_device_hour=3.6,
    )


def finish(folder: RunFolder, settings: dict, inputs: list[Artifact] | None = None):
    made = folder.path("made")
    storage.write_text(made, "x")
    with stage_of(folder, settings, inputs) as stage:
        if stage.done is None:
            stage.outputs.append(Artifact(name="checkpoint", url=made, digest="d"))
    return stage


def test_a_finished_stage_is_not_run_again(folder) -> None:
    first = finish(folder, {"steps": 1})
    assert first.done is None
    second = finish(folder, {"steps": 1})
    assert second.done is not None
    assert second.record == first.record


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [({"steps": 2}, []), ({"steps": 1}, [Artifact(name="shards", url="u", digest="other")])],
)
def test_other_settings_or_inputs_run_it_again(folder, settings, inputs) -> None:
    finish(folder, {"steps": 1})
    assert finish(folder, settings, inputs).done is None


def test_a_stage_whose_output_is_gone_runs_again(folder, tmp_path) -> None:
    finish(folder, {"steps": 1})
    (tmp_path / "run" / "made").unlink()
    with stage_of(folder, {"steps": 1}) as stage:
        assert stage.done is None


def test_a_failed_stage_leaves_its_reason_and_runs_again(folder) -> None:
    with pytest.raises(ZeroDivisionError), stage_of(folder, {"steps": 1}):
        _ = 1 / 0
    record = folder.read("pretrain")
    assert (record.status, record.reason) == ("failed", "ZeroDivisionError: division by zero")
    assert finish(folder, {"steps": 1}).done is None


def test_an_interrupted_stage_says_so_and_runs_again(folder) -> None:
    with pytest.raises(KeyboardInterrupt), stage_of(folder, {"steps": 1}):
        raise KeyboardInterrupt
    assert "the same command continues here" in folder.read("pretrain").reason
    assert finish(folder, {"steps": 1}).done is None


def test_a_refused_stage_keeps_the_verdicts(folder) -> None:
    no = Verdict(gate="weights_are_finite", passed=False, reason="NaN in lm_head", figures={"nan": 1})
    with pytest.raises(GateRefused, match="NaN in lm_head"), stage_of(folder, {}):
        raise GateRefused("checkpoint", [no])
    record = folder.read("pretrain")
    assert (record.status, record.verdicts) == ("refused", [no])


def test_a_missing_stage_says_what_to_run(folder) -> None:
    with pytest.raises(StageMissing, match="stanchion run shard_dataset"):
        folder.completed("shard_dataset")


def test_cost_is_device_hours_times_price(folder) -> None:
    record = finish(folder, {}).record
    assert record.cost == pytest.approx(record.device_seconds / 1000)
    assert record.device_seconds == pytest.approx(2 * record.seconds, abs=0.05)


def test_an_output_that_was_not_made_is_named(folder) -> None:
    with pytest.raises(StageMissing, match="left no 'policy'; it left checkpoint"):
        finish(folder, {}).record.output("policy")
