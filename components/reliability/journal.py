"""What the supervisor did, one JSON line each, beside the events of the ranks: `events/supervisor.jsonl`.

launched    an attempt begins                  {"processes": 2}
fault       something was found                {"fault": "stall", "rank": 1, "step": 20}
ended       an attempt is over                 {"fault": "stall"}; null when it ended well or as it was asked

Readers outside, such as the exporter of metrics, know from it what no rank knows of itself.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

NAME = "supervisor.jsonl"


def write(folder: Path, kind: str, *, at: float | None = None, **fields: Any) -> None:
    """Add a line to the journal of a job's folder; `at` is Unix time, now unless given."""
    line = json.dumps({"at": time.time() if at is None else at, "kind": kind, **fields})
    path = folder / "events" / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(line + "\n")
