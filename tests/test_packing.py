"""Packing places every token where the plan says, cuts no document unseen, and lets none look at another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.data import packing
from components.data.packing import Config
from components.data.reader import Reader
from components.data.stream import IGNORED, PADDING, TokenStream

LENGTHS = st.lists(st.one_of(st.integers(0, 3), st.integers(1, 90)), max_size=30)
SLOTS = st.integers(1, 40)


def filled(plan: packing.Plan, lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Of each sequence the tokens in it, as (document, place)."""
    return [
        [(piece.row, place) for piece in plan.sequence(i) for place in range(piece.start, piece.stop)]
        for i in range(len(plan))
    ]


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, length=SLOTS)
def test_concatenated_sequences_are_windows_of_the_line_of_all_tokens(
    lengths: list[int], length: int
) -> None:
    plan = packing.plan(np.array(lengths, dtype=np.int64), length, "concatenate")
    line = [(row, place) for row, size in enumerate(lengths) for place in range(size)]
    windows = [line[i * length : i * length + length + 1] for i in range(max(len(line) - 1, 0) // length)]
    assert filled(plan, lengths) == windows
    assert len(plan) == packing.concatenated_count(len(line), length)
    assert plan.waste.padding == 0
    assert plan.waste.left_out == len(line) - len({token for window in windows for token in window})


@settings(max_examples=150, deadline=None)
@given(lengths=LENGTHS, length=SLOTS)
def test_whole_documents_make_each_token_a_target_exactly_once(lengths: list[int], length: int) -> None:
    plan = packing.plan(np.array(lengths, dtype=np.int64), length, "whole_documents")
    targets = []
    for number in range(len(plan)):
        pieces = plan.sequence(number)
        assert 0 < sum(map(len, pieces)) <= length + 1
        targets += [(piece.row, place) for piece in pieces for place in range(piece.start + 1, piece.stop)]
    assert sorted(targets) == [(row, place) for row, size in enumerate(lengths) for place in range(1, size)]


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, length=SLOTS, kind=st.sampled_from(["concatenate", "whole_documents"]))
def test_waste_is_counted_as_it_is(lengths: list[int], length: int, kind: str) -> None:
    plan = packing.plan(np.array(lengths, dtype=np.int64), length, kind)
    tokens = filled(plan, lengths)
    pieces = [piece for i in range(len(plan)) for piece in plan.sequence(i)]
    waste = plan.waste
    assert waste.slots == len(plan) * (length + 1)
    assert waste.padding == waste.slots - sum(map(len, tokens))
    assert waste.left_out == sum(lengths) - len({token for sequence in tokens for token in sequence})
    assert waste.cuts == len(pieces) - len({piece.row for piece in pieces})


def test_documents_that_fit_are_never_cut_by_the_careful_kind() -> None:
    lengths = np.array([10, 33, 20, 13, 2, 31, 5])
    assert packing.plan(lengths, 32, "whole_documents").waste.cuts == 0
    assert packing.plan(lengths, 32, "concatenate").waste.cuts > 0


@pytest.mark.parametrize("kind", ["concatenate", "whole_documents"])
def test_no_token_crosses_the_mask_of_its_document(small_uneven, kind: str) -> None:
    """Where documents are masked, an input and its target are of one document, and what a token may see
    is of its own alone; positions start anew with each."""
    with Reader(str(small_uneven)) as reader:
        stream = TokenStream(
            reader,
            "train",
            sequence_length=24,
            batch_size=4,
            seed=0,
            packing=Config.model_validate({"kind": kind, "mask_documents": True}),
        )
        for step in range(-(-stream.num_sequences // 4)):
            batch = stream.batch(step)
            for row in range(4):
                documents = truth(stream, reader, step, row)
                assert batch.documents[row].tolist() == [number for number, _, _ in documents[:-1]]
                for place in range(24):
                    (number, token, at), (after, target, _) = documents[place], documents[place + 1]
                    assert batch.inputs[row, place] == token
                    expected = target if number == after != PADDING else IGNORED
                    assert batch.targets[row, place] == expected
                    if number != PADDING:
                        assert batch.positions[row, place] == at


def truth(stream: TokenStream, reader: Reader, step: int, row: int) -> list[tuple[int, int, int]]:
    """Of each slot of a row the number of its document, its token, and its place in that document's piece."""
    origin, found = stream.origin(step, row), []
    for number, piece in enumerate(origin.pieces):
        tokens = reader.tokens(origin.shard, piece.row)[piece.start : piece.stop]
        found += [(number, int(token), at) for at, token in enumerate(tokens)]
    return found + [(PADDING, 0, 0)] * (stream.sequence_length + 1 - len(found))


@pytest.fixture(scope="module")
def small_uneven(tmp_path_factory: pytest.TempPathFactory):
    from case_studies.proofs import _data

    return _data.make(tmp_path_factory.mktemp("data") / "uneven", _data.UNEVEN)
