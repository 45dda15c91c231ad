"""One self-contained page about a data set: what it holds, what was set aside and why, what it had to be.

Reads the published data set only. No script, no outside host; names and texts in it come from strangers and
are shown as text, never as markup.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from components import storage
from components.data.curation.checked import FRAMES
from components.data.lineage.left_out import left_out
from components.data.manifest import SPLITS, Manifest, Shard, Split
from components.data.reader import Reader
from components.errors import ShardIntegrityError
from components.observability import canvas
from components.records import RunFolder

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("data.html.j2")
STYLE = Path(__file__).with_name("study.css")
EXPECTATIONS = "expectations.json"
LONGEST = 160
"""Characters of a path that are shown."""


def write(folder: RunFolder, url: str) -> str:
    """Publish the page of a data set as `report/data.html` of a run; its URL."""
    there = folder.path("report", "data.html")
    storage.write_text(there, page(url))
    logger.info("data set: %s", there)
    return there


def page(url: str) -> str:
    """The page of a published data set."""
    from jinja2 import Environment, StrictUndefined

    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"shown": shown, "words": words, "figure": figure}
    with Reader(url) as reader:
        manifest, report = reader.manifest, _report(reader)
        return engine.from_string(TEMPLATE.read_text()).render(
            manifest=manifest,
            digest=reader.digest,
            settings=json.dumps(manifest.source.settings, ensure_ascii=False),
            sizes=sizes(manifest),
            left_out=left_out(reader),
            report=report,
            expectations=expectations(report),
            light=canvas.css(dark=False),
            dark=canvas.css(dark=True),
            style=STYLE.read_text(),
        )


def sizes(manifest: Manifest) -> list[dict[str, Any]]:
    """Documents, tokens and shards of each split, and of each part of a mixture."""
    rows = []
    for split in SPLITS:
        parts = manifest.sources.get(split, {})
        rows.append(_size(split, "", manifest.splits[split], manifest.shards_of(split)))
        if len(parts) > 1:
            rows += [
                _size(split, name, part, manifest.shards_of(split, name)) for name, part in parts.items()
            ]
    return rows


def expectations(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was expected of the documents and what was found, that which failed first."""
    rows = [{"frame": frame, **found} for frame in FRAMES for found in report.get(frame, [])]
    return sorted(rows, key=lambda row: bool(row["success"]))


def shown(text: str) -> str:
    """Text of strangers on one line: nothing that cannot be seen or turns it round, and an end."""
    seen = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[: LONGEST + 1])
    return seen if len(text) <= LONGEST else f"{seen[:LONGEST]}…"


def words(name: str) -> str:
    """`too_short` as people write it."""
    return shown(name.replace("_", " "))


def figure(observed: str) -> str:
    """What was observed; of a fraction the digits that mean something."""
    try:
        return f"{float(observed):.4g}" if "." in observed else shown(observed)
    except ValueError:
        return shown(observed)


def _size(split: str, source: str, size: Split, shards: list[Shard]) -> dict[str, Any]:
    return {
        "split": split,
        "source": source,
        "documents": size.documents,
        "tokens": size.tokens,
        "shards": len(shards),
        "bytes": sum(shard.bytes for shard in shards),
    }


def _report(reader: Reader) -> dict[str, Any]:
    """What the checks found, when it is what was written."""
    if EXPECTATIONS not in reader.manifest.files:
        return {}
    content = storage.read_bytes(storage.join(reader.url, EXPECTATIONS))
    if storage.sha256_of_bytes(content) != reader.manifest.files[EXPECTATIONS].sha256:
        raise ShardIntegrityError(
            f"{EXPECTATIONS} of {reader.url} is not what the manifest vouches for; run "
            f"`stanchion check {reader.url}` for every fault",
            shard=EXPECTATIONS,
        )
    found: dict[str, Any] = json.loads(content)
    return found
