"""`python -m case_studies.proofs [NAME ...]`: try each claim in full and keep its figures and the picture.

A claim that does not hold is written down all the same, and ends the run with an error.
"""

from __future__ import annotations

import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from case_studies.proofs import _picture
from components import plugins, quiet, storage
from components.observability.provenance import machine, versions
from components.records import git_commit

PACKAGE = "case_studies.proofs"
RESULTS = Path(__file__).parents[1] / "results" / "proofs"

logger = logging.getLogger(PACKAGE)


def main(names: list[str]) -> int:
    """Prove what is named, or all; the exit status is the number of claims that do not hold."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    results = [kept(name) for name in names or plugins.names(PACKAGE)]
    every = [storage.read_json(str(path)) for path in sorted(RESULTS.glob("*.json"))]
    storage.write_text(str(RESULTS / "proofs.svg"), _picture.draw(every))
    logger.info("figures and picture: %s", RESULTS)
    return sum(not result["holds"] for result in results)


def kept(name: str) -> dict[str, Any]:
    """Try one claim, and write what was found with where and when."""
    module = plugins.load(PACKAGE, name)
    started = time.monotonic()
    figures = module.prove(seed=0)
    result = {
        "name": name,
        "claim": str(module.__doc__).partition("\n")[0],
        "holds": bool(figures["holds"]),
        "seconds": round(time.monotonic() - started, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": git_commit(),
        "machine": machine(),
        "versions": versions(),
        "figures": figures,
    }
    storage.write_json(str(RESULTS / f"{name}.json"), result)
    logger.info("%s: %s (%.0f s)", name, "holds" if result["holds"] else "DOES NOT HOLD", result["seconds"])
    return result


if __name__ == "__main__":
    quiet.apply()
    sys.exit(main(sys.argv[1:]))
