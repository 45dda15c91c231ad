"""Gates that compare a checkpoint with memory, with the one before, with a fresh process: each refuses."""

from __future__ import annotations

import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.checkpoints import first_answer, manifest, partitions, saved_tensors, state, weights
from components.checkpoints.check import FILES_ONLY, decide, default_gates
from components.checkpoints.previous import before
from components.errors import CheckpointCorrupt, GateRefused
from components.gates import loss_is_no_worse, norms_within_bounds
from components.judgement import Subject, judge
from components.records import Verdict

OPTIMIZER = "deepspeed/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
MODEL = "deepspeed/mp_rank_00_model_states.pt"


@pytest.fixture
def checkpoint(small_checkpoints: Path, tmp_path: Path) -> Path:
    """Step 4, step 2 beside it; both only committed."""
    return Path(shutil.copytree(small_checkpoints, tmp_path / "checkpoints")) / "step-000004"


@pytest.fixture
def after_another(checkpoint: Path) -> Path:
    """Step 4, behind a step 2 that its gates have validated."""
    decide(str(checkpoint.with_name("step-000002")), default_gates(*FILES_ONLY))
    return checkpoint


def asked(gate: str, checkpoint: Path) -> Verdict:
    (verdict,) = judge(Subject(checkpoint, previous=before(str(checkpoint))), default_gates(gate))
    return verdict


def held(path: Path, name: str) -> bytes:
    """The bytes of one tensor, of any of the files that hold tensors."""
    if path.suffix == ".safetensors":
        return next(bytes(w.content) for w in weights.read(path) if w.name == name)
    if "optim" in path.name:
        return bytes(partitions.read(path).tensors[name].weight.content)
    return bytes(saved_tensors.read(path)["module"][name].content)


def put(path: Path, name: str, new: bytes) -> None:
    """Write other bytes over the beginning of a tensor, and nothing else."""
    old, content = held(path, name), path.read_bytes()
    assert content.count(old) == 1, "else it is not clear which one was meant"
    path.write_bytes(content.replace(old, new + old[len(new) :]))


def resealed(checkpoint: Path, **held_out: Any) -> None:
    """Commit it anew, with another measurement or with the files as they are now."""
    content = manifest.read(checkpoint)
    changed = content.held_out.model_copy(update=held_out)
    manifest.seal(checkpoint, content.model_copy(update={"held_out": changed}))
    Path(state.url_of(str(checkpoint))).unlink()
    state.commit(str(checkpoint), manifest.digest(checkpoint))


def test_every_tensor_of_an_untouched_checkpoint_is_the_one_in_memory(checkpoint: Path) -> None:
    verdict = asked("tensors_match_digests", checkpoint)
    assert verdict.passed, verdict.reason
    assert verdict.figures == {"weights": 20, "optimizer_tensors": 8, "ranks": 1, "changed": 0}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("model.safetensors", "model.norm.weight"),
        (MODEL, "model.layers.1.mlp.up_proj.weight"),
        (OPTIMIZER, "master.0"),
        (OPTIMIZER, "exp_avg.1"),
        (OPTIMIZER, "exp_avg_sq.0"),
    ],
)
def test_a_tensor_that_changed_before_its_file_was_hashed_is_named(
    checkpoint: Path, file: str, name: str
) -> None:
    first = held(checkpoint / file, name)[0]
    put(checkpoint / file, name, bytes([first ^ 1]))
    resealed(checkpoint)
    assert asked("files_match_manifest", checkpoint).passed, "the digests of files cannot know"
    verdict = asked("tensors_match_digests", checkpoint)
    assert not verdict.passed
    assert verdict.reason == f"'{name}' in {Path(file).name} differs from what was in memory"
    assert verdict.figures["changed"] == 1


def test_moments_that_changed_places_are_both_named(checkpoint: Path) -> None:
    path = checkpoint / OPTIMIZER
    one, other = held(path, "exp_avg.0"), held(path, "exp_avg_sq.0")
    content = path.read_bytes().replace(one, b"?" * len(one)).replace(other, one)
    path.write_bytes(content.replace(b"?" * len(one), other))
    verdict = asked("tensors_match_digests", checkpoint)
    assert not verdict.passed
    assert "'exp_avg.0'" in verdict.reason
    assert "'exp_avg_sq.0'" in verdict.reason


def test_the_optimizer_of_an_earlier_step_is_refused(checkpoint: Path) -> None:
    shutil.copy(checkpoint.with_name("step-000002") / OPTIMIZER, checkpoint / OPTIMIZER)
    verdict = asked("tensors_match_digests", checkpoint)
    assert verdict.figures["changed"] == 8, "the counts of steps differ as well"


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_an_optimizer_file_that_was_cut_is_refused_and_named(checkpoint: Path, kept: float) -> None:
    path = checkpoint / OPTIMIZER
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    verdict = asked("tensors_match_digests", checkpoint)
    assert not verdict.passed
    assert f"{path.name} is not a file that torch saved" in verdict.reason


def test_an_optimizer_file_that_is_not_there_is_refused(checkpoint: Path) -> None:
    (checkpoint / OPTIMIZER).rename(checkpoint / "deepspeed" / "elsewhere.pt")
    assert not asked("tensors_match_digests", checkpoint).passed


class Order:
    """A pickle that executes a command when it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_nothing_that_a_file_orders_is_executed(checkpoint: Path, tmp_path: Path) -> None:
    import torch

    torch.save(
        {"optimizer_state_dict": {"state": {}}, "more": Order(f"touch {tmp_path}/done")},
        checkpoint / OPTIMIZER,
    )
    assert not asked("tensors_match_digests", checkpoint).passed
    asked("norms_within_bounds", checkpoint)
    assert not (tmp_path / "done").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "stage", "tensors"), [(3, 2, 24), (2, 3, 16), (2, 0, 160)])
def test_the_parts_of_all_ranks_are_compared_at_every_stage(
    small_job: Callable[..., Any], tmp_path: Path, ranks: int, stage: int, tensors: int
) -> None:
    done = small_job(tmp_path, processes=ranks, stage=stage, steps=2, batch_size=6)
    assert done.returncode == 0, done.stderr[-2000:]
    found = tmp_path / "checkpoints" / "step-000002"
    verdict = asked("tensors_match_digests", found)
    assert verdict.passed, verdict.reason
    assert (verdict.figures["ranks"], verdict.figures["optimizer_tensors"]) == (ranks, tensors)
    last = partitions.files(found, ranks)[-1]
    part = partitions.read(last).tensors["exp_avg_sq.1"].weight
    content, old = last.read_bytes(), bytes(part.content)
    last.write_bytes(content.replace(old, bytes([old[0] ^ 1]) + old[1:]))
    verdict = asked("tensors_match_digests", found)
    assert f"'exp_avg_sq.1' in {last.name} differs" in verdict.reason


def test_without_a_checkpoint_before_norms_are_only_kept(checkpoint: Path) -> None:
    verdict = asked("norms_within_bounds", checkpoint)
    assert verdict.passed
    assert "no norms of a validated checkpoint before" in verdict.reason
    single = [v for name, v in verdict.figures.items() if name.startswith("weight ")]
    assert len(single) == 20
    assert verdict.figures["weights"] == pytest.approx(math.sqrt(sum(norm**2 for norm in single)))


def test_norms_are_those_that_torch_computes(checkpoint: Path) -> None:
    from safetensors.torch import load_file

    figures = asked("norms_within_bounds", checkpoint).figures
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        assert figures[f"weight {name}"] == pytest.approx(tensor.double().norm().item(), rel=1e-5)


def test_norms_are_compared_with_the_figures_of_the_checkpoint_before_alone(after_another: Path) -> None:
    (after_another.with_name("step-000002") / "model.safetensors").unlink()
    verdict = asked("norms_within_bounds", after_another)
    assert verdict.passed, verdict.reason
    assert "within bounds of step-000002's" in verdict.reason


@pytest.mark.parametrize(
    ("file", "name", "values", "what"),
    [
        ("model.safetensors", "model.norm.weight", b"\x00\x43", "weight model.norm.weight is 128"),
        ("model.safetensors", "model.norm.weight", bytes(64), "weight model.norm.weight is 0"),
        (OPTIMIZER, "exp_avg.0", bytes(1 << 20), "moment exp_avg.0 is 0"),
        (OPTIMIZER, "exp_avg_sq.1", struct.pack("<f", 1e4), "moment exp_avg_sq.1 is 1e"),
    ],
)
def test_a_tensor_that_blew_up_or_was_lost_is_refused(
    after_another: Path, file: str, name: str, values: bytes, what: str
) -> None:
    path = after_another / file
    put(path, name, values[: len(held(path, name))])
    verdict = asked("norms_within_bounds", after_another)
    assert not verdict.passed
    assert f"the norm of {what}" in verdict.reason
    assert "is allowed" in verdict.reason


def test_a_moment_that_is_nan_is_refused_without_any_checkpoint_before(checkpoint: Path) -> None:
    put(checkpoint / OPTIMIZER, "exp_avg.1", struct.pack("<f", math.nan))
    assert asked("weights_are_finite", checkpoint).passed, "the weights are still sound"
    verdict = asked("norms_within_bounds", checkpoint)
    assert not verdict.passed
    assert "the norm of moment exp_avg.1 is nan" in verdict.reason


def test_a_bound_on_norms_can_be_set(after_another: Path) -> None:
    subject = Subject(after_another, previous=before(str(after_another)))
    tight = norms_within_bounds.Config(moments=1.0001)
    assert not norms_within_bounds.check(subject, tight).passed


@pytest.mark.parametrize(
    ("was", "norm", "refused"),
    [
        (4.2e-10, 1.2e-3, False),  # rewards were all alike until now
        (0.3, 2e-9, False),  # and have been for a while
        (4.2e-10, 0.9, False),  # as large as a clipped gradient makes it
        (4.2e-10, 1.1, True),
        (0.3, 0.0, True),  # decay never ends at zero
    ],
)
def test_a_gradient_that_comes_and_goes_is_no_fault(was: float, norm: float, refused: bool) -> None:
    name, config = "moment exp_avg.0", norms_within_bounds.Config()
    assert bool(list(norms_within_bounds._out_of_bounds({name: norm}, {name: was}, config))) is refused


def test_a_whole_folder_loads_and_answers_in_a_fresh_process(checkpoint: Path) -> None:
    verdict = asked("loads_in_a_fresh_process", checkpoint)
    assert verdict.passed, verdict.reason
    assert "30880 parameters loaded in" in verdict.reason
    assert verdict.figures["vocabulary"] == 320
    assert 0 < verdict.figures["seconds_to_load"] < verdict.figures["seconds"]


def test_a_folder_that_does_not_load_is_refused_with_the_end_of_the_error(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": 1}')
    verdict = asked("loads_in_a_fresh_process", checkpoint)
    assert not verdict.passed
    assert verdict.reason.startswith("a fresh process failed: ")
    assert "\n" not in verdict.reason


def test_a_tensor_that_is_missing_does_not_load_as_random_numbers(checkpoint: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointCorrupt, match=r"1 missing keys, first 'model\.layers\.1"):
        first_answer.of(checkpoint)


def test_in_the_same_world_a_loss_that_is_off_by_the_last_digits_does_not_reproduce(
    checkpoint: Path, small_shards: Path
) -> None:
    resealed(checkpoint, loss=manifest.read(checkpoint).held_out_loss + 1e-9)
    (verdict,) = judge(Subject(checkpoint, shards=small_shards), default_gates("loss_reproduces"))
    assert not verdict.passed
    assert "the same world: difference 1.0e-09, none is allowed" in verdict.reason


@pytest.mark.parametrize(("off", "passed"), [(1e-3, True), (0.03, False)])
def test_in_another_world_a_loss_reproduces_within_a_tolerance(
    checkpoint: Path, small_shards: Path, off: float, passed: bool
) -> None:
    loss = manifest.read(checkpoint).held_out_loss + off
    resealed(checkpoint, loss=loss, arithmetic="torch 1.0, abacus")
    (verdict,) = judge(Subject(checkpoint, shards=small_shards), default_gates("loss_reproduces"))
    assert verdict.passed is passed
    assert "another world" in verdict.reason
    assert verdict.figures["allowed"] == 0.02


@pytest.mark.parametrize(
    ("rise", "passed"), [(-0.1, True), (0.2, True), (0.3, False), (math.nan, False), (math.inf, False)]
)
def test_a_loss_may_not_rise_beyond_its_bound(after_another: Path, rise: float, passed: bool) -> None:
    was = manifest.read(after_another.with_name("step-000002")).held_out_loss
    resealed(after_another, loss=was + rise)
    verdict = asked("loss_is_no_worse", after_another)
    assert verdict.passed is passed, verdict.reason
    assert verdict.figures["loss_before"] == was
    assert "in step-000002" in verdict.reason


def test_a_loss_has_nothing_to_be_worse_than_before_the_first_validated_one(checkpoint: Path) -> None:
    verdict = asked("loss_is_no_worse", checkpoint)
    assert verdict.passed
    assert "no validated checkpoint before to compare with" in verdict.reason


def test_losses_on_different_held_out_data_are_not_compared(after_another: Path) -> None:
    resealed(after_another, loss=99.0, sequences=13)
    verdict = asked("loss_is_no_worse", after_another)
    assert verdict.passed
    assert "step-000002 was measured on other data" in verdict.reason


def test_a_run_that_went_off_its_course_is_quarantined_with_the_figures(after_another: Path) -> None:
    resealed(after_another, loss=9.0)
    with pytest.raises(GateRefused, match=r"loss_is_no_worse: held-out loss 9\.0000, .* is allowed"):
        decide(str(after_another), {"loss_is_no_worse": loss_is_no_worse.Config(bound_nats=0.5)})
    known = state.read(str(after_another))
    assert known is not None
    assert known.state == "quarantined"
    assert known.verdicts[0].figures["bound_nats"] == 0.5


def test_the_checkpoint_before_is_a_validated_one_that_nobody_edited(after_another: Path) -> None:
    url, earlier = str(after_another), after_another.with_name("step-000002")
    found = before(url)
    assert found is not None
    assert (found.name, found.manifest.step) == ("step-000002", 2)
    assert before(str(earlier)) is None, "nothing comes before it"
    text = (earlier / manifest.NAME).read_text()
    (earlier / manifest.NAME).write_text(text + " ")
    assert before(url) is None
    (earlier / manifest.NAME).write_text(text)
    state.quarantine(str(earlier), "it was a bad day")
    assert before(url) is None
