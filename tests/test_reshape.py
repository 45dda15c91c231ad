"""A checkpoint goes on with other ranks, another ZeRO stage, another precision, and nothing of it is lost."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from components.checkpoints import conversion, digests, layout, manifest, reshape, slices, state, universal
from components.checkpoints.conversion import Converted
from components.checkpoints.layout import Layout
from components.checkpoints.restore import Checkpoint, open_checkpoint
from components.checkpoints.resume import set_random
from components.errors import CheckpointCorrupt, ConfigError
from components.training.config import Training
from components.training.curve import by_step

Job = Callable[..., subprocess.CompletedProcess[str]]


def losses(folder: Path) -> dict[int, float]:
    return dict(by_step(folder / "job" / "events", "step", "loss"))


def worst(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest relative difference, over the steps of `one`."""
    return max(abs(loss / other[step] - 1) for step, loss in one.items())


def validated(folder: Path) -> Path:
    state.validate(str(folder), [])
    return folder


@pytest.fixture(scope="session")
def written(small_checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A validated checkpoint of one rank, ZeRO 2, bf16, after two steps."""
    copied = tmp_path_factory.mktemp("reshape") / "step-000002"
    shutil.copytree(small_checkpoints / "step-000002", copied)
    known = state.read(str(small_checkpoints / "step-000002"))
    assert known is not None
    state.commit(str(copied), known.manifest_sha256)
    return open_checkpoint(str(validated(copied)))


@pytest.fixture
def converted(written: Checkpoint, tmp_path: Path) -> Path:
    was = layout.of_manifest(written.manifest)
    universal.convert(written.path, tmp_path / "universal", zero_stage=was.zero_stage)
    return tmp_path / "universal"


def test_two_ranks_go_on_where_one_stopped(
    small_job: Job, small_checkpoints: Path, written: Checkpoint, tmp_path: Path
) -> None:
    done = small_job(tmp_path, processes=2, resume_from=written.path)
    assert done.returncode == 0, done.stderr
    found = losses(tmp_path)
    assert sorted(found) == [3, 4]
    assert worst(found, losses(small_checkpoints.parent)) < 1e-3  # bf16: gradients are added in another order
    one, two = (
        manifest.read(folder / "step-000004") for folder in (small_checkpoints, tmp_path / "checkpoints")
    )
    assert (one.world_size, two.world_size) == (1, 2)
    assert one.data_position == two.data_position
    assert not list((tmp_path / "scratch").glob("reshape-*"))


def test_the_universal_form_is_what_every_rank_had_in_memory(written: Checkpoint, converted: Path) -> None:
    was = layout.of_manifest(written.manifest)
    assert was == Layout(world_size=1, zero_stage=2, precision="bf16")
    assert conversion.compare_with_manifest(written, converted, was) == 2


@pytest.mark.parametrize(("kind", "named"), [("fp32", "master.0"), ("exp_avg", "exp_avg.0")])
def test_one_bit_flipped_after_the_conversion_is_named(
    written: Checkpoint, converted: Path, kind: str, named: str
) -> None:
    path = converted / "zero" / "model.layers.1.mlp.up_proj.weight" / f"{kind}.pt"
    content = torch.load(path)
    content["param"].view(torch.int32)[3, 5] ^= 1
    torch.save(content, path)
    with pytest.raises(
        CheckpointCorrupt, match=f"rank 0's optimizer tensor '{named}' is xxh3.*after conversion"
    ):
        conversion.compare_with_manifest(written, converted, layout.of_manifest(written.manifest))


def test_slices_that_leave_elements_out_are_refused(
    written: Checkpoint, converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a rank's table of slices ended early; its zeros at the end hide that from the digests."""
    name = next(iter(written.manifest.tensors))
    path = converted / "zero" / name / "fp32.pt"
    content = torch.load(path)
    content["param"] = torch.cat([content["param"], content["param"][:1]])
    torch.save(content, path)
    with pytest.raises(CheckpointCorrupt, match=f"slices of '{name}' have"):
        conversion.compare_with_manifest(written, converted, layout.of_manifest(written.manifest))


def test_another_model_is_told_by_its_first_parameter(written: Checkpoint, converted: Path) -> None:
    known = Converted(converted, 2.0, {name: {} for name in written.manifest.tensors})
    mine = {
        torch.empty(universal.read(converted, name, "fp32").numel()): name
        for name in written.manifest.tensors
    }
    assert reshape.another_model(SimpleNamespace(param_names=mine), known) is None
    mine[torch.empty(7)] = "model.norm.weight"
    told = reshape.another_model(SimpleNamespace(param_names=mine), known)
    assert told == "'model.norm.weight' has 32 elements there and 7 here"


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_equal_parts_of_all_ranks_are_the_whole(ranks: int) -> None:
    whole = {"long": torch.arange(20.0), "short": torch.arange(2.0) + 100}
    sizes = {name: tensor.numel() for name, tensor in whole.items()}
    back: dict[str, list[torch.Tensor]] = {name: [] for name in whole}
    for rank in range(ranks):
        flat = slices.equal_parts(sizes, rank, ranks)
        held = flat.of(whole.__getitem__)
        for one in flat.slices:
            back[one.name].append(held[one.place : one.place + one.length])
    for name, tensor in whole.items():
        assert torch.equal(torch.cat(back[name]), tensor)


def test_tied_weights_have_one_name_and_matrices_come_first() -> None:
    tied = torch.ones(3, 2)
    module = {"embed": tied, "norm": torch.ones(2), "up": torch.ones(2, 2), "head": tied}
    assert slices.in_order(module) == ["embed", "up", "norm"]


def test_a_new_rank_has_generators_of_its_own_that_are_always_the_same(written: Checkpoint) -> None:
    def drawn(rank: int) -> tuple[float, float]:
        set_random(written, rank)
        return float(torch.rand(1)), random.random()

    kept = torch.get_rng_state(), random.getstate()
    assert len({drawn(rank) for rank in range(4)}) == 4
    assert drawn(3) == drawn(3)
    torch.set_rng_state(kept[0])
    random.setstate(kept[1])


def test_a_batch_that_does_not_divide_says_over_how_many_ranks_it_would() -> None:
    assert Training(batch_size=12).batch_size_per_rank(4) == 3
    with pytest.raises(ConfigError, match="does not divide over 5 ranks; it does over 1, 2, 3, 4, 6, 12"):
        Training(batch_size=12).batch_size_per_rank(5)


@pytest.mark.slow
def test_three_ranks_refuse_a_batch_of_four(small_job: Job, written: Checkpoint, tmp_path: Path) -> None:
    refused = small_job(tmp_path, processes=3, resume_from=written.path)
    assert refused.returncode != 0
    assert "training.batch_size=4 does not divide over 3 ranks; it does over 1, 2, 4" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "other", "precision"), [(1, 3, "fp32"), (3, 2, "fp32"), (0, 1, "bf16"), (2, 0, "bf16")]
)
def test_one_stage_becomes_another(
    small_job: Job, tmp_path: Path, stage: int, other: int, precision: str
) -> None:
    """The same ranks add in the same order, so that in fp32 even the losses are the same to the last bit."""
    whole = small_job(tmp_path / "whole", processes=2, stage=stage, precision=precision)
    assert whole.returncode == 0, whole.stderr
    halfway = validated(tmp_path / "whole" / "checkpoints" / "step-000002")
    done = small_job(tmp_path / "on", processes=2, stage=other, precision=precision, resume_from=halfway)
    assert done.returncode == 0, done.stderr
    assert worst(losses(tmp_path / "on"), losses(tmp_path / "whole")) < (
        1e-6 if precision == "fp32" else 1e-3
    )


@pytest.mark.slow
def test_parameters_that_do_not_divide_over_the_ranks_are_whole_again(small_job: Job, tmp_path: Path) -> None:
    """Three ranks and sizes of powers of two: under ZeRO 3 the last rank's part of each is filled up."""
    settings: dict[str, Any] = {"batch_size": 6, "precision": "fp32"}
    assert small_job(tmp_path / "whole", processes=3, stage=3, **settings).returncode == 0
    halfway = validated(tmp_path / "whole" / "checkpoints" / "step-000002")
    two = small_job(tmp_path / "two", processes=2, stage=1, resume_from=halfway, **settings)
    assert two.returncode == 0, two.stderr
    again = validated(tmp_path / "two" / "checkpoints" / "step-000004")
    three = small_job(tmp_path / "three", processes=3, stage=3, steps=6, resume_from=again, **settings)
    assert three.returncode == 0, three.stderr
    assert worst(losses(tmp_path / "two"), losses(tmp_path / "whole")) < 1e-6


@pytest.mark.slow
def test_a_master_that_is_not_the_one_in_memory_is_refused_by_other_ranks_too(
    small_job: Job, written: Checkpoint, tmp_path: Path
) -> None:
    """The files match a manifest that was made after the damage, as when a write itself went wrong."""
    folder = Path(shutil.copytree(written.path, tmp_path / "step-000002"))
    part = folder / "deepspeed" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    content = torch.load(part, weights_only=False)
    content["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"][7] += 1e-3
    torch.save(content, part)
    manifest.seal(folder, manifest.read(folder))
    state.commit(str(folder), manifest.digest(folder))
    refused = small_job(tmp_path / "job", processes=2, resume_from=validated(folder))
    assert refused.returncode != 0
    assert "CheckpointCorrupt" in refused.stderr
    assert "rank 0's optimizer tensor 'exp_avg.0'" in refused.stderr
    assert not list((tmp_path / "job" / "scratch").glob("reshape-*"))


@pytest.mark.slow
def test_a_checkpoint_in_bf16_goes_on_in_fp32_from_its_masters(
    small_job: Job, written: Checkpoint, tmp_path: Path
) -> None:
    done = small_job(tmp_path, precision="fp32", stage=0, steps=3, resume_from=written.path)
    assert done.returncode == 0, done.stderr
    assert "torch.float32" in str(
        {tensor.dtype for tensor in _weights(tmp_path / "checkpoints" / "step-000003")}
    )


def _weights(folder: Path) -> list[torch.Tensor]:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    assert digests.of_tensors(weights) == manifest.read(folder).tensors
    return list(weights.values())
