"""What a batch holds does not depend on who reads it, with how many workers, or where it was interrupted."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from case_studies.proofs import _data, elastic_order, resume_cost
from case_studies.proofs.elastic_order import Outcome
from components.data import mixture, reader, stream
from components.data.packing import Config as Packing
from components.data.position import Position
from components.data.reader import Reader
from components.data.recent import Recent
from components.data.samples import SampleStream
from components.data.stream import IGNORED, PADDING, TokenStream
from components.errors import ConfigError, ShardIntegrityError

NOTHING = Outcome(replayed=0, lost=0, different=0, uneven=0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return elastic_order.make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def uneven(folders: dict[str, Path]):
    with Reader(str(folders["uneven"])) as opened:
        yield opened


def opened(source: Reader, **settings) -> TokenStream:
    given = {"sequence_length": 16, "batch_size": 4, "seed": 0, **settings}
    return TokenStream(source, "train", **given)


@settings(max_examples=200, deadline=None)
@given(chosen=st.integers(0, 1 << 60))
def test_a_killed_job_goes_on_with_other_ranks_as_if_nothing_had_been(
    folders: dict[str, Path], chosen: int
) -> None:
    case = elastic_order.drawn_case(random.Random(chosen))
    assert elastic_order.tried(folders, case) == NOTHING, case


@pytest.mark.parametrize("world", elastic_order.WORLDS)
def test_a_batch_of_24_is_the_same_for_all_worlds_and_workers(folders: dict[str, Path], world: int) -> None:
    cases = [case for case in elastic_order.exhaustive_cases(kills=(5,)) if case.world == world]
    assert len(cases) == len(elastic_order.WORKERS) * len(elastic_order.WORLDS)
    for case in cases[:: 1 + world // 3]:
        assert elastic_order.tried(folders, case) == NOTHING, case


def test_real_workers_read_the_same_batches(folders: dict[str, Path]) -> None:
    case = elastic_order.real_cases()[1]
    assert elastic_order.tried(folders, case, real=True) == NOTHING


def test_the_proof_of_order_can_fail(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader that starts its epoch anew after a kill repeats samples and loses others."""
    case = elastic_order.drawn_case(random.Random(4))
    monkeypatch.setattr(Position, "step", 0)
    with pytest.raises(ValueError, match="zip"):
        elastic_order.tried(folders, case)


def test_ranks_hold_equally_many_rows_of_shards_of_five_one_and_nine(uneven: Reader) -> None:
    data = opened(uneven, batch_size=6)
    for step in range(2 * data.num_sequences // 6):
        assert {len(data.batch(step, rank, 3).inputs) for rank in range(3)} == {2}


@pytest.mark.parametrize("kind", ["concatenate", "whole_documents"])
def test_going_on_at_90_percent_reads_the_samples_of_that_batch_alone(
    folders: dict[str, Path], kind: str
) -> None:
    found = resume_cost.measured_data_set(folders["even"], kind)
    assert found["state_bytes"] <= 1024
    assert found["samples_read"] == found["samples_in_batch"]


def test_the_state_of_a_mixture_is_small_too(folders: dict[str, Path]) -> None:
    with Reader(str(folders["mixed"])) as source:
        data = opened(source, batch_size=24, mixture=elastic_order.MIXTURE)
        assert len(data.position(10**9).model_dump_json().encode()) <= 1024


def test_a_position_is_counted_and_never_inferred(uneven: Reader) -> None:
    data = opened(uneven, batch_size=5)
    kept = Position.model_validate_json(data.position(1234).model_dump_json())
    assert (kept.samples_consumed, kept.step) == (6170, 1234)
    kept.refuse_another(data.position(0))


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("seed", {"seed": 1}),
        ("batch_size", {"batch_size": 8}),
        ("sequence_length", {"sequence_length": 17}),
        ("packing", {"packing": Packing(kind="whole_documents")}),
        ("block_items", {"block_items": 5}),
    ],
)
def test_going_on_in_another_order_is_refused(uneven: Reader, field: str, settings: dict) -> None:
    with pytest.raises(ConfigError, match=f"another order of samples: {field}"):
        opened(uneven).position(3).refuse_another(opened(uneven, **settings).position(0))


def test_going_on_in_another_data_set_is_refused(folders: dict[str, Path], uneven: Reader) -> None:
    with Reader(str(folders["even"])) as other, pytest.raises(ConfigError, match="manifest_sha256"):
        opened(uneven).position(3).refuse_another(opened(other).position(0))


def test_a_batch_across_the_end_of_an_epoch_is_whole(uneven: Reader) -> None:
    one = opened(uneven, batch_size=1)
    size = one.num_sequences - 1
    data = opened(uneven, batch_size=size)
    expected = np.concatenate([one.batch(size + row).inputs for row in range(size)])
    np.testing.assert_array_equal(data.batch(1).inputs, expected)
    assert {data.origin(1, row).epoch for row in range(size)} == {0, 1}


def test_every_batch_holds_exact_shares_of_each_source(folders: dict[str, Path]) -> None:
    with Reader(str(folders["mixed"])) as source:
        data = opened(source, batch_size=10, mixture=elastic_order.MIXTURE)
        for step in range(8):
            rows = [data.origin(step, row) for row in range(10)]
            assert sorted(row.source for row in rows) == ["code"] * 5 + ["prose"] * 3 + ["talk"] * 2
            assert all(row.shard.source == row.source for row in rows)


def test_the_order_in_which_sources_are_named_changes_nothing(folders: dict[str, Path]) -> None:
    """A position compares mixtures as sets of shares; another batch for the same set would go unseen."""
    with Reader(str(folders["mixed"])) as source:
        one, two = (
            opened(source, batch_size=10, mixture=dict(items))
            for items in (elastic_order.MIXTURE.items(), reversed(elastic_order.MIXTURE.items()))
        )
        assert one.position(0) == two.position(0)
        for step in range(5):
            np.testing.assert_array_equal(one.batch(step).inputs, two.batch(step).inputs)


@settings(max_examples=100, deadline=None)
@given(
    shares=st.dictionaries(st.text("abcdef", min_size=1), st.floats(0.01, 100), min_size=1, max_size=6),
    batch=st.integers(1, 200),
)
def test_shares_are_exact_to_a_row_or_refused(shares: dict[str, float], batch: int) -> None:
    total = sum(shares.values())
    try:
        counts = mixture.counts_per_batch(shares, batch)
    except ConfigError:
        assert min(shares.values()) * batch / total < 1
        return
    assert sum(counts.values()) == batch
    assert all(abs(counts[name] - batch * share / total) < 1.001 for name, share in shares.items())
    assert sorted(name for name, _ in mixture.rows_of(counts)) == sorted(
        name for name, rows in counts.items() for _ in range(rows)
    )


@pytest.mark.parametrize("share", [0, -1, float("nan"), float("inf")])
def test_a_proportion_is_a_number_above_nothing(share: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        mixture.counts_per_batch({"a": 1, "b": share}, 8)


def test_the_held_out_batch_is_the_same_for_everyone(folders: dict[str, Path]) -> None:
    one, two = (stream.fixed_batch(str(folders["even"]), 3, 32) for _ in range(2))
    assert one.shape == (3, 33)
    assert one.min() >= 0
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda source: opened(source, batch_size=6).batch(0, 0, 4), "use 8"),
        (lambda source: TokenStream(source, "test", sequence_length=8, batch_size=1, seed=0), "train"),
        (lambda source: opened(source, sequence_length=10**8), "lower it"),
        (lambda source: opened(source, mixture={"poems": 1.0}), "poems"),
        (lambda source: SampleStream(source, "test"), "held_out"),
        (lambda source: stream.fixed_batch(source.url, 10**6, 4), "ask for fewer"),
    ],
    ids=["batch size", "split", "sequence length", "mixture", "split of samples", "held-out batch"],
)
def test_what_does_not_fit_says_what_would(uneven: Reader, ask, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(uneven)


def test_a_dropped_sample_leaves_padding_and_moves_nothing(uneven: Reader, monkeypatch) -> None:
    def tokens(self: Reader, shard, row: int):
        if (shard.name, row) == ("train-000002.tar", 2):
            raise ShardIntegrityError("planted", shard=shard.name)
        return real(self, shard, row)

    real, dropped = Reader.tokens, []
    whole = [opened(uneven).batch(step) for step in range(20)]
    monkeypatch.setattr(Reader, "tokens", tokens)
    data = opened(uneven, drop=lambda fault, shard, row: dropped.append((shard.name, row)))
    for step in range(20):
        batch = data.batch(step)
        kept = batch.documents != PADDING
        np.testing.assert_array_equal(batch.inputs[kept], whole[step].inputs[kept])
        assert (batch.targets[~kept] == IGNORED).all()
    assert set(dropped) == {("train-000002.tar", 2)}


# Single documents


def test_an_epoch_holds_every_document_once_and_the_next_in_another_order(uneven: Reader) -> None:
    data = SampleStream(uneven, "train", seed=3, block_items=4)
    epochs = [list(data.read(epoch * 15, epoch * 15 + 15)) for epoch in range(3)]
    every = sorted(document.text.encode() for document in stream.documents(uneven.url, "train"))
    assert len(data) == 15
    assert all(sorted(epoch) == every for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_strides_of_workers_make_up_the_whole(uneven: Reader, workers: int) -> None:
    data = SampleStream(uneven, "train", seed=3, block_items=4)
    parts = [list(data.read(worker, 40, workers)) for worker in range(workers)]
    whole = list(data.read(0, 40))
    assert [parts[i % workers][i // workers] for i in range(40)] == whole
    assert [data[i] for i in (0, 14, 15, 39)] == [whole[i] for i in (0, 14, 15, 39)]


def test_a_system_that_allows_few_open_files_still_gets_the_right_document(
    tmp_path: Path, monkeypatch
) -> None:
    """A descriptor that was closed to make room may by then be another shard's."""
    parts = (_data.Part("train", (1,) * 60), _data.Part("held_out", (1,)))
    folder = _data.make(tmp_path / "many", parts, longest=20)
    with Reader(str(folder)) as source:
        expected = list(SampleStream(source, "train").read(0, 120))
    for module in (reader, __import__("components.data.samples", fromlist=["samples"])):
        monkeypatch.setattr(module, "most_open_files", lambda: 16)
    with Reader(str(folder), verify=False) as source:
        assert list(SampleStream(source, "train").read(0, 120)) == expected
        assert len(source._files) <= 16


def test_what_was_used_last_is_kept_within_its_bytes() -> None:
    kept: Recent[str] = Recent(10)
    for key in "abc":
        kept.put(key, key, 4)
    assert (kept.get("a"), kept.get("b"), kept.size) == (None, "b", 8)
    kept.put("b", "again", 4)
    assert (kept.get("b"), kept.size, len(kept)) == ("again", 8, 2)
    kept.put("large", "alone", 100)
    assert (len(kept), kept.get("large")) == (1, "alone")
