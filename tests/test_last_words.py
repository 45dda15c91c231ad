"""Where a rank was that gloo has aborted, read back from the stack that it left in its log."""

from __future__ import annotations

import pytest

from components.reliability.flight_recorder import last_words

LOG = """terminate called after throwing an instance of 'gloo::EnforceNotMet'
Fatal Python error: Aborted

Thread 0x00007f38 (most recent call first):
  File "/usr/lib/python3.11/signal.py", line 82 in sigwait

Thread 0x00007f39 (most recent call first):
{clock}  File "/env/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/env/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/repo/components/training/gradients.py", line 58 in measure
  File "/repo/components/training/pretrain.py", line 189 in _update
"""
CLOCK = '  File "/repo/components/training/communication.py", line 37 in wait\n'


@pytest.mark.parametrize("clock", ["", CLOCK])
def test_an_aborted_rank_leaves_the_line_that_called_the_collective(clock: str) -> None:
    found = last_words(LOG.format(clock=clock))
    assert found is not None
    assert (found.op, found.place) == ("all_reduce", "measure, gradients.py:58")


def test_a_rank_that_was_aborted_elsewhere_or_not_at_all_leaves_none() -> None:
    assert last_words(LOG.format(clock=CLOCK * 3)) is None
    assert last_words(LOG.format(clock="").replace("Aborted", "Killed")) is None
