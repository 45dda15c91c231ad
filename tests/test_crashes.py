"""A crash is put down to the rank that ended of itself, not to one that lost its connection to it."""

from __future__ import annotations

import pytest

from components.reliability.crashes import cause

LOST = "Traceback (most recent call last):\nRuntimeError: [gloo/pair.cc:540] Connection closed by peer\n"
OWN = "Traceback (most recent call last):\nFileNotFoundError: no such shard\n"


def test_a_killed_rank_is_named_although_the_launcher_saw_its_peer_fail_first() -> None:
    assert cause(0, [0, 1], {0: LOST, 1: ""}, told={0}) == 1


def test_ranks_that_the_launcher_ended_are_not_taken_for_killed_ones() -> None:
    assert cause(0, [0, 1, 2, 3], {0: LOST, 1: "", 2: "", 3: LOST}, told={0, 2, 3}) == 1


def test_an_error_of_its_own_outweighs_a_lost_connection() -> None:
    assert cause(0, [0, 2], {0: LOST, 1: "", 2: OWN}, told={0, 1, 2}) == 2


@pytest.mark.parametrize("logs", [{0: OWN, 1: LOST}, {0: "", 1: LOST}])
def test_the_launcher_is_believed_where_nothing_speaks_against_it(logs: dict[int, str]) -> None:
    assert cause(0, [0, 1], logs, told={1}) == 0


def test_where_all_have_lost_a_connection_the_launcher_is_believed() -> None:
    assert cause(1, [0, 1], {0: LOST, 1: LOST}, told={0, 1}) == 1
    assert cause(None, [], {}, told=set()) is None
