"""Each gate of a checkpoint says no to the thing that it is there for, with figures."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from components.checkpoints import manifest, weights
from components.checkpoints.check import WITH_SHARDS, WITHOUT_SHARDS, check_path
from components.gates import beats_a_unigram_model, files_match_manifest, loss_reproduces, weights_are_finite
from components.judgement import Subject, judge
from components.records import Verdict


@pytest.fixture
def checkpoint(small_checkpoints: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_checkpoints, tmp_path / "checkpoints")) / "step-000004"


def put(checkpoint: Path, tensor: str, value: bytes) -> None:
    """Write two bytes over the first element of a tensor."""
    path = checkpoint / "model.safetensors"
    place = next(w for w in weights.read(path) if w.name == tensor)
    content = bytearray(path.read_bytes())
    start = bytes(content).index(bytes(place.content))
    content[start : start + 2] = value
    path.write_bytes(content)


def test_an_untouched_checkpoint_passes_the_gates_of_files_and_weights(checkpoint: Path) -> None:
    gates = {
        "files_match_manifest": files_match_manifest.Config(),
        "weights_are_finite": weights_are_finite.Config(),
    }
    assert [verdict.passed for verdict in judge(Subject(checkpoint), gates)] == [True, True]


def test_the_gate_of_files_names_what_differs(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{}")
    verdict = files_match_manifest.check(Subject(checkpoint), files_match_manifest.Config())
    assert not verdict.passed
    assert "config.json has 2 bytes" in verdict.reason
    assert verdict.figures["different"] == 1


@pytest.mark.parametrize(
    ("value", "what"), [(b"\xc0\x7f", "NaN"), (b"\x80\x7f", "infinity"), (b"\x80\xff", "minus")]
)
def test_the_gate_refuses_weights_that_are_not_finite(checkpoint: Path, value: bytes, what: str) -> None:
    put(checkpoint, "model.norm.weight", value)
    verdict = weights_are_finite.check(Subject(checkpoint), weights_are_finite.Config())
    assert not verdict.passed, what
    assert verdict.reason == "1 weights are NaN or infinite, 1 of them in 'model.norm.weight'"


def test_a_file_that_is_no_safetensors_file_is_refused_with_a_reason(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense")
    (verdict,) = judge(Subject(checkpoint), {"weights_are_finite": weights_are_finite.Config()})
    assert not verdict.passed
    assert "is not a safetensors file" in verdict.reason


def test_the_loss_of_a_checkpoint_reproduces_to_the_last_bit(checkpoint: Path, small_shards: Path) -> None:
    verdict = reproduced(checkpoint, small_shards)
    assert verdict.passed, verdict.reason
    assert verdict.figures["difference"] == 0.0


def test_a_loss_that_was_written_down_wrong_does_not_reproduce(checkpoint: Path, small_shards: Path) -> None:
    content = manifest.read(checkpoint)
    claimed = content.held_out.model_copy(update={"loss": content.held_out_loss - 0.01})
    (checkpoint / manifest.NAME).write_text(
        content.model_copy(update={"held_out": claimed}).model_dump_json()
    )
    verdict = reproduced(checkpoint, small_shards)
    assert not verdict.passed
    assert verdict.figures["difference"] == pytest.approx(0.01)


def test_a_loss_is_not_compared_on_another_data_set(
    checkpoint: Path, small_shards: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(small_shards, tmp_path / "other"))
    (other / "manifest.json").write_text((other / "manifest.json").read_text() + " ")
    (verdict,) = judge(Subject(checkpoint, shards=other), {"loss_reproduces": loss_reproduces.Config()})
    assert not verdict.passed
    assert "the checkpoint was measured on" in verdict.reason


@pytest.mark.parametrize(("better_by", "passed"), [(0.6, True), (0.4, False), (-1.0, False), (np.nan, False)])
def test_a_model_must_beat_counting_by_a_margin(
    checkpoint: Path, small_shards: Path, better_by: float, passed: bool
) -> None:
    from components.data import manifest as datasets

    content = manifest.read(checkpoint)
    bar = datasets.read(str(small_shards)).unigram_cross_entropy
    held_out = content.held_out.model_copy(update={"loss": bar - better_by})
    manifest.seal(checkpoint, content.model_copy(update={"held_out": held_out}))
    verdict = beats_a_unigram_model.check(
        Subject(checkpoint, shards=small_shards), beats_a_unigram_model.Config(margin_nats=0.5)
    )
    assert verdict.passed is passed, verdict.reason


def test_a_path_is_checked_with_the_gates_that_its_data_set_allows(
    checkpoint: Path, tmp_path: Path, small_shards: Path
) -> None:
    gates = [verdict.gate for verdict in check_path(checkpoint)]
    assert gates == list(WITH_SHARDS)
    content = manifest.read(checkpoint)
    manifest.seal(checkpoint, content.model_copy(update={"shards": str(tmp_path / "gone")}))
    verdicts = {verdict.gate: verdict.passed for verdict in check_path(checkpoint)}
    assert list(verdicts) == list(WITHOUT_SHARDS)
    assert not verdicts.pop("files_match_manifest"), "this manifest was never committed"
    assert all(verdicts.values())


def reproduced(checkpoint: Path, shards: Path) -> Verdict:
    return loss_reproduces.check(Subject(checkpoint, shards=shards), loss_reproduces.Config())
