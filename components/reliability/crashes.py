"""Which rank a crash came from: the one that ended of itself, not one that lost its connection to it.

A rank that is killed says nothing; a moment later its peers fail in their next collective with a traceback.
The launcher names whichever it happened to see first, and that is often the one with the traceback.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

LOST = re.compile(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|DistNetworkError|"
    r"NCCL.*(?:remote process|unhandled system error)|recvValue failed|sendBytes failed",
    re.IGNORECASE,
)
"""What gloo, NCCL and the store say when the other end has gone."""
FAILED = re.compile(r"^(?:Traceback |Fatal |\w*(?:Error|Exception)\b)", re.MULTILINE)


def cause(
    named: int | None, ended: Sequence[int], logs: Mapping[int, str], told: Collection[int]
) -> int | None:
    """The rank to name, of those that have `ended`; the launcher's, `named`, where nothing speaks against it.

    `logs` is what each has written as errors, `told` who has left a record of its collectives: with an error,
    or at SIGTERM, when a launcher ends what is left. Who left neither was killed.
    """
    known = [*([named] if named is not None else []), *(rank for rank in sorted(ended) if rank != named)]
    own = [rank for rank in known if FAILED.search(logs.get(rank, "")) and not LOST.search(logs[rank])]
    killed = [
        rank for rank in known if rank in ended and not FAILED.search(logs.get(rank, "")) and rank not in told
    ]
    if named in own or named in killed:
        return named
    return next(iter(own or killed), named)
