"""A rank that the network has cut off is named from the data that nobody acknowledges, and no other is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from components.plugins import load
from components.reliability import connections
from components.reliability.connections import where_they_meet
from components.reliability.evidence import Evidence, explained
from components.reliability.faults import KINDS
from components.reliability.finding import Finding

PEER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as mine:
    sys.stdin.read(1)
    mine.sendall(b"gradients")
    sys.stdin.read(1)
"""


@pytest.fixture
def peer() -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", PEER, str(server.getsockname()[1])]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        with server.accept()[0] as connection:
            yield connection, process
            process.kill()
            process.communicate()


def test_the_rank_behind_a_cut_link_is_named_from_what_the_kernel_holds(
    peer: tuple[socket.socket, subprocess.Popen[bytes]],
) -> None:
    _, process = peer
    assert process.stdin is not None
    pids = {0: process.pid, 1: os.getpid()}
    assert connections.cut(pids) is None
    partition = load(KINDS, "partition")
    partition.strike(partition.Config())
    process.stdin.write(b".")
    process.stdin.flush()
    deadline = time.monotonic() + 5
    while (found := connections.cut(pids)) is None:
        assert time.monotonic() < deadline, "nothing was sent again"
        time.sleep(0.05)
    assert (found.rank, found.links, found.confidence) == (1, ((0, 1),), "likely")


def test_all_links_of_one_rank_name_it_and_links_without_a_common_rank_name_nobody() -> None:
    named = where_they_meet([(0, 3), (2, 3), (3, 0)])
    assert named is not None
    assert (named.rank, named.confidence) == (3, "certain")
    assert "no longer reaches rank 3: data sent again and again from rank 0 to 3" in named.sentence
    assert where_they_meet([(0, 1), (2, 3)]) is None
    assert where_they_meet([]) is None


def test_one_link_cut_both_ways_names_an_end_and_says_that_it_may_be_the_other() -> None:
    either = where_they_meet([(0, 1), (1, 0)])
    assert either is not None
    assert either.confidence == "unclear"


def test_a_stall_is_blamed_on_the_rank_that_is_cut_off_rather_than_on_who_rested_first() -> None:
    stall = Finding(kind="stall", sentence="3 ranks stand", rank=0, step=9, phase="backward")
    cut = where_they_meet([(0, 2), (1, 2), (2, 0)])
    told = explained(stall, Evidence(cut=cut))
    assert (told.rank, told.confidence) == (2, "certain")
    assert told.sentence.startswith("3 ranks stand; the network no longer reaches rank 2")
    assert "firewall" in told.advice
