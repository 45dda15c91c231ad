"""A process that writes shards: `python -m components.data.writing.pool_worker`, as `pool` starts it.

Through its standard input come the plan and then parts, through its standard output go what became of each;
both as pickles, between two processes of one program. It ends with its input.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import BinaryIO

from components.data.writing.writer import Written, write_part


def main() -> None:
    """Answer until nothing more is asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one who started us decides
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing that prints gets between the answers
    with answers, sys.stdin.buffer as questions:
        try:
            _answer(questions, answers)
        except (EOFError, BrokenPipeError):
            return


def _answer(questions: BinaryIO, answers: BinaryIO) -> None:
    plan = pickle.load(questions)
    while True:
        part = pickle.load(questions)
        became: Written | Exception
        try:
            became = write_part(plan, part)
        except Exception as error:
            became = error
        pickle.dump(became, answers)
        answers.flush()


if __name__ == "__main__":
    main()
