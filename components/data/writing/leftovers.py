"""What a crash left behind: found by name, said in the log, removed."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from components import storage
from components.data import manifest as manifests
from components.data.writing.plan import Plan
from components.errors import DataError

OURS = re.compile(
    r"(train|held_out)-\d+\.(tar|index\.npy)|tokenizer(_config)?\.json|set_aside\.jsonl|expectations\.json"
)
"""Names that only a data set has; nothing else is ever removed from a place that has no manifest."""

logger = logging.getLogger(__name__)


def sweep_plan(plan: Plan) -> None:
    """Remove unfinished shards, and whatever the plan does not hold."""
    _remove(str(plan.partial))
    shards = {part.name for part in plan.parts}
    for name in storage.listing(str(plan.files)):
        if not name.startswith("tokenizer") and name.replace(".index.npy", ".tar") not in shards:
            _remove(str(plan.files / name))
    for name in storage.listing(str(plan.receipt("").parent)):
        if name.partition(".tar.")[0] + ".tar" not in shards:
            _remove(str(plan.receipt("").parent / name))


def sweep(url: str) -> list[str]:
    """Remove what lies beside a published data set and is not in its manifest; the names removed."""
    listed = {*manifests.read(url).entries(), manifests.NAME}
    return _sweep(url, [name for name in storage.listing(url) if name not in listed])


def make_room(url: str, wanted: Collection[str]) -> list[str]:
    """Remove what an upload that never ended left at a place without a manifest; the names removed.

    Wanted names stay, to be written over. Names that no data set has are an error: the place is not ours.
    """
    extra = [name for name in storage.listing(url) if name not in wanted]
    if strange := [name for name in extra if not OURS.fullmatch(name)]:
        raise DataError(
            f"{url} holds {', '.join(strange[:3])}, which no data set has, and no {manifests.NAME}; "
            "choose another place, or empty it"
        )
    return _sweep(url, extra)


def _sweep(url: str, names: list[str]) -> list[str]:
    for name in names:
        _remove(storage.join(url, name))
    return names


def _remove(url: str) -> None:
    if storage.exists(url):
        logger.warning("sweeping %s, which an earlier run left", url)
        storage.remove(url)
