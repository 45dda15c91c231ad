"""No bad gradient reaches an optimizer, copies that differ are found, and a resumed job decides the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from components.data.stream import IGNORED, Batch
from components.reliability.detectors import rank_reports
from components.reliability.fault_kinds import poisoned_batch
from components.reliability.faults import Drill
from components.reliability.finding import Sight
from components.training.guard import Config, Guard, Norms
from components.training.replicas import Divergence, odd_ones

HEALTHY = (Norms(0.8, 0.3), Norms(0.7, 0.4))
"""Of two ranks that are given a slice each: together 0.5."""


def seasoned(*, factor: float = 10.0) -> Guard:
    guard = Guard(Config(factor=factor, least=4))
    assert not any(guard.judge(HEALTHY, sharded=True) for _ in range(8))
    return guard


@pytest.mark.parametrize(
    ("norms", "rank"),
    [
        ((Norms(0.8, nan), Norms(nan, nan)), 1),
        ((Norms(inf, nan), Norms(0.7, 0.4)), 0),
        ((Norms(0.8, 0.3), Norms(0.7, nan)), 1),
        ((Norms(nan, nan), Norms(nan, nan)), None),
    ],
    ids=["own of rank 1", "own of rank 0", "on the way to rank 1", "of all"],
)
def test_what_is_not_finite_never_passes_and_the_rank_it_began_at_is_named(
    norms: tuple[Norms, ...], rank: int | None
) -> None:
    refusal = Guard(Config()).judge(norms, sharded=True)
    assert refusal is not None
    assert (refusal.rank, "not finite" in refusal.reason) == (rank, True)


def test_a_norm_that_no_gradient_accounts_for_is_damage_on_the_way() -> None:
    refusal = Guard(Config()).judge((Norms(0.8, 0.3), Norms(0.7, 0.9)), sharded=True)
    assert refusal is not None
    assert (refusal.rank, "damaged on the way" in refusal.reason) == (1, True)


def test_an_outlier_is_left_out_and_is_whose_gradient_it_was() -> None:
    guard = seasoned()
    one = guard.judge((Norms(0.8, 4), Norms(15, 5)), sharded=True)
    alike = guard.judge((Norms(14, 4), Norms(15, 5)), sharded=True)
    assert one is not None
    assert alike is not None
    assert (one.rank, alike.rank) == (1, None)
    assert guard.norm == pytest.approx(41**0.5)
    assert guard.judge(HEALTHY, sharded=True) is None, "what was left out is no part of what is usual"


def test_the_first_steps_may_have_any_size() -> None:
    guard = Guard(Config(factor=10, least=4))
    large = tuple(Norms(100 * norms.own, 100 * norms.given) for norms in HEALTHY)
    assert not any(guard.judge(norms, sharded=True) for norms in (HEALTHY, large, HEALTHY, large))


def test_without_zero_all_ranks_are_given_the_same_to_the_last_bit() -> None:
    ranks = [Norms(0.8, 0.5), Norms(0.7, 0.5 + 1e-12), Norms(0.6, 0.5)]
    refusal = Guard(Config()).judge(ranks, sharded=False)
    two = Guard(Config()).judge(ranks[:2], sharded=False)
    assert refusal is not None
    assert two is not None
    assert (refusal.rank, two.rank) == (1, None), "of two, nobody can say which"


def test_a_few_in_a_row_are_lived_with_and_one_good_step_forgives_them() -> None:
    guard = Guard(Config(in_a_row=2))
    bad = (Norms(nan, nan), Norms(0.7, nan))
    ends = []
    for norms in (bad, bad, HEALTHY, bad, bad, bad):
        guard.judge(norms, sharded=True)
        ends.append(guard.at_its_end)
    assert ends == [False] * 5 + [True]


def test_a_resumed_guard_decides_as_the_one_that_was_interrupted() -> None:
    guard = seasoned()
    guard.judge((Norms(nan, nan), Norms(0.7, nan)), sharded=True)
    again = Guard(guard.config, **json.loads(json.dumps(guard.state)))
    edge = (Norms(40, 3), Norms(40, 4.000001)), (Norms(40, 3), Norms(40, 3.99))
    assert [guard.judge(norms, sharded=True) for norms in edge] == [
        again.judge(norms, sharded=True) for norms in edge
    ]
    assert (again.skipped, list(again.seen)) == (guard.skipped, list(guard.seen))


RANKS = """
import json
import sys

import torch
import torch.distributed as dist

from components.checkpoints.digests import of_partition, of_tensors
from components.parallelism import zero
from components.plugins import load
from components.reliability.faults import KINDS
from components.training import engine as engines
from components.training import gradients, model, replicas
from components.training.config import Model
from components.training.guard import Config, Guard

SHAPE = Model(hidden_size=32, num_layers=1, intermediate_size=64, context_length=32)


def state(engine):
    shards = {name: getattr(one, "ds_tensor", one) for name, one in engine.module.named_parameters()}
    return of_partition(engine) | of_tensors(shards)


def strike(kind, engine):
    module = load(KINDS, kind)
    module.strike(module.Config(), engine)


def tried(stage, precision):
    engines.seed_everything(0)
    engine = engines.start(
        model.build(SHAPE, 512, model.PRECISIONS[precision]),
        rate=1e-3,
        batch_size_per_rank=2,
        precision=precision,
        parallelism={"zero": zero.Config(stage=stage)},
    )
    own, guard, rank, said = gradients.OwnGradient(engine), Guard(Config()), dist.get_rank(), []
    for step, fault in enumerate(("", "", "own", "nan_gradient", "flipped_gradient", "")):
        torch.manual_seed(2 * step + rank)
        ids = torch.randint(0, 512, (2, 32))
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss * float("nan") if fault == "own" and rank == 1 else loss)
        if fault.endswith("gradient") and rank == 1:
            strike(fault, engine)
        norms, _ = gradients.measure(engine, own)
        refusal, before = guard.judge(norms, sharded=gradients.is_sharded(engine)), state(engine)
        if refusal is None:
            engines.step(engine, rate=1e-3)
        else:
            gradients.leave_out(engine)
        said.append([fault, refusal.rank if refusal else None, state(engine) == before])
    same = replicas.compare(engine)
    if rank == 1:
        strike("flipped_replica", engine)
    different = replicas.compare(engine)
    return {"steps": said, "same": same is None, "different": different and [different.by, different.ranks]}


engines.join("cpu", 30)
found = {f"{stage} {precision}": tried(stage, precision) for stage, precision in json.loads(sys.argv[1])}
if dist.get_rank() == 0:
    print(json.dumps(found))
engines.leave()
"""
TRIED = [(0, "fp32"), (2, "bf16"), (3, "fp32")]
"""ZeRO stage and number format."""


@pytest.mark.slow
def test_real_ranks_leave_bad_gradients_out_and_find_a_flipped_copy_under_every_sharding(
    tmp_path: Path,
) -> None:
    """Rank 1 is struck each time; a step left out leaves weights, masters and moments alone."""
    target = tmp_path / "ranks.py"
    target.write_text(RANKS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(str(target), json.dumps(TRIED)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    taken, left_out = (
        ["", None, False],
        [[kind, 1, True] for kind in ("own", "nan_gradient", "flipped_gradient")],
    )
    for one in found.values():
        assert one["steps"] == [taken, taken, *left_out, taken]
        assert one["same"], "healthy copies do not differ"
    by = {name: one["different"] for name, one in found.items()}
    unclear, masters = ["unclear", []], ["masters", [1]]
    assert by == {"0 fp32": unclear, "2 bf16": masters, "3 fp32": masters}


def test_of_three_copies_the_one_that_differs_is_named_and_of_two_none() -> None:
    assert odd_ones([[7, 8], [7, 9], [7, 8]]) == [1]
    assert odd_ones([[7, 8], [6, 9], [7, 8], [7, 8], [7, 5]]) == [1, 4]
    assert odd_ones([[7, 8], [7, 9]]) == []


def test_a_poisoned_batch_is_noise_where_targets_counted_and_the_same_at_every_try() -> None:
    def batch() -> Batch:
        inputs = np.arange(24).reshape(2, 12) % 7
        return Batch(inputs, np.where(inputs > 1, inputs, IGNORED), np.zeros_like(inputs))

    one, two, clean = batch(), batch(), batch()
    for struck in (one, two):
        poisoned_batch.strike(poisoned_batch.Config(), struck)
    assert np.array_equal(one.inputs, two.inputs)
    assert not np.array_equal(one.inputs, clean.inputs)
    assert np.array_equal(one.targets == IGNORED, clean.targets == IGNORED)
    assert one.inputs.max() < 7


def test_a_drill_that_breaks_what_a_loop_holds_knows_its_point_and_refuses_another() -> None:
    assert Drill(kind="nan_gradient").phase == "gradient"
    with pytest.raises(ValueError, match="strikes at 'batch'"):
        Drill(kind="poisoned_batch", phase="data")


def test_what_ranks_report_is_told_and_only_copies_that_differ_end_the_attempt() -> None:
    divergence = Divergence(["norm", "head"], [1], "majority")
    reports = [
        {"kind": "skipped_step", "step": 4, "reason": "not finite", "culprit": 1, "figures": {}},
        {"kind": "replica_divergence", "step": 9, **divergence.told},
    ]
    events = [{**report, "rank": rank} for report in reports for rank in (0, 1)]
    found = list(rank_reports.make(rank_reports.Config(), 2).look(Sight((), events, 0.0)))
    assert [(one.kind, one.rank, one.step, one.ends) for one in found] == [
        ("bad_gradient", 1, 4, False),
        ("replica_divergence", 1, 9, True),
    ]
    assert "rank 1 holds another norm and 1 more than it should (by majority)" in found[1].sentence
