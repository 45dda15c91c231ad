"""Epochs on the stock loader, as all read tars: `python -m case_studies._stock_stream FOLDER [FLIP...]`

A process of its own, because a damaged tar may do anything to the one that opens it. Each flip, written
NAME:OFFSET:BIT, is made, an epoch is read, and it is undone; `-` reads the folder as it is. Prints
a line of JSON an epoch: the error if there was one, seconds, and of each sample that a trainer would have
seen its key and a digest.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from case_studies._stock_loads import flip


def main() -> None:
    """An epoch for each flip."""
    folder = Path(sys.argv[1])
    for written in sys.argv[2:]:
        name, _, place = written.partition(":")
        offset, _, bit = place.partition(":")
        if place:
            flip(folder / name, int(offset), int(bit))
        sys.stdout.write(json.dumps(_epoch(folder)) + "\n")
        if place:
            flip(folder / name, int(offset), int(bit))


def _epoch(folder: Path) -> dict[str, Any]:
    """All train samples, in the order of the tars."""
    import webdataset as wds

    names = sorted(str(path) for path in folder.glob("train-*.tar"))
    started, seen, error = time.perf_counter(), [], ""
    try:
        for sample in wds.WebDataset(names, shardshuffle=False):
            content = b"".join(sample[kind] for kind in sorted(sample) if isinstance(sample[kind], bytes))
            digest = hashlib.sha256(content).hexdigest()
            seen.append([sample["__key__"], digest])
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    gc.collect()  # it leaves files open
    return {"seconds": time.perf_counter() - started, "error": error, "seen": seen}


if __name__ == "__main__":
    main()
