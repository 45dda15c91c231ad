"""From kept documents to a published data set: shards, tokenizer, what was set aside and, last, the manifest.

Its bytes follow from its documents, tokenizer and settings alone: not from the number of processes, nor from
how often the writing was killed and begun again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from components import contents, plugins, storage
from components.data import manifest as manifests
from components.data import tokenizer, unigram
from components.data.curation.checked import Checked
from components.data.manifest import SPLITS, Manifest, Shard, Source, Split
from components.data.shards import Config
from components.data.writing import leftovers, pool
from components.data.writing.layout import layout
from components.data.writing.pace import Pace
from components.data.writing.plan import Plan, held, on_disk
from components.data.writing.publish import publish
from components.data.writing.writer import Written, read_receipt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

SET_ASIDE, EXPECTATIONS = "set_aside.jsonl", "expectations.json"
Write = Callable[[Plan, pool.Tell], None]
"""Has every shard of a plan written, and tells of each one that is whole."""
Progress = Callable[[int, int], None]
"""Told how many shards are done, and how many there will be."""

logger = logging.getLogger(__name__)


def make_dataset(
    checked: Checked,
    trained: Tokenizer,
    url: str,
    *,
    source: plugins.Config,
    config: Config,
    scratch: Path,
    write: Write = pool.write,
    on_progress: Progress | None = None,
) -> Manifest:
    """Write a data set in the scratch folder and publish it whole; a run that was killed is continued there.

    Raises DataError when a split has no document, and when the place holds another data set.
    """
    folder = scratch.absolute() / "data_set"
    with held(folder):
        plan = prepare(checked, trained, folder, config)
        write(plan, _progress(plan, on_progress))
        manifest = _assemble(plan, checked, trained, source)
        publish(plan.files, url, plan.ledger)
    logger.info("%d shards of %d documents lie in %s", len(plan.parts), len(checked.kept), url)
    return manifest


def prepare(checked: Checked, trained: Tokenizer, folder: Path, config: Config) -> Plan:
    """Decide what each shard holds, and sweep what a crash left that is none of it."""
    documents = on_disk(checked.kept, folder)
    files = folder / "files"
    files.mkdir(parents=True, exist_ok=True)
    tokenizer.save(trained, files)
    sha256 = storage.sha256_of_file(files / "tokenizer.json")
    plan = Plan(folder, documents, sha256, layout(documents.labels(), config))
    leftovers.sweep_plan(plan)
    return plan


def _progress(plan: Plan, on_progress: Progress | None) -> pool.Tell:
    pace, total, done = Pace("wrote", len(plan.parts), "shards"), len(plan.parts), 0

    def tell(written: Written) -> None:
        nonlocal done
        done += 1
        shard = written.shard
        pace.tell(bytes=shard.bytes * written.anew, documents=shard.samples * written.anew)
        if on_progress:
            on_progress(done, total)
        if done == total:
            logger.info("%s", pace)

    return tell


def _assemble(plan: Plan, checked: Checked, trained: Tokenizer, source: plugins.Config) -> Manifest:
    """The other files, and the manifest of all."""
    lines = (json.dumps(asdict(one), sort_keys=True) + "\n" for one in checked.set_aside)
    storage.write_text(str(plan.files / SET_ASIDE), "".join(lines))
    storage.write_json(str(plan.files / EXPECTATIONS), checked.report)
    shards = [read_receipt(plan, part) for part in plan.parts]
    names = (*tokenizer.FILES, SET_ASIDE, EXPECTATIONS)
    manifest = Manifest(
        shards=shards,
        files={name: contents.entry(plan.files / name) for name in names},
        source=_source(checked, source),
        vocab_size=trained.get_vocab_size(),
        splits={split: _size([one for one in shards if one.split == split]) for split in SPLITS},
        sources=_sources(shards),
        unigram_cross_entropy=unigram.cross_entropy(*(_counts(plan, split) for split in SPLITS)),
        set_aside=checked.reasons,
    )
    storage.write_bytes(str(plan.files / manifests.NAME), manifests.to_bytes(manifest))
    return manifest


def _source(checked: Checked, source: plugins.Config) -> Source:
    return Source(
        kind=plugins.name_of(source),
        settings=source.model_dump(mode="json"),
        digest=checked.digest,
        documents=checked.documents,
        characters=checked.characters,
    )


def _sources(shards: list[Shard]) -> dict[str, dict[str, Split]]:
    """Only a mixture has named parts."""
    found: dict[str, dict[str, list[Shard]]] = {}
    for shard in shards:
        if shard.source:
            found.setdefault(shard.split, {}).setdefault(shard.source, []).append(shard)
    return {split: {name: _size(of) for name, of in parts.items()} for split, parts in found.items()}


def _size(shards: list[Shard]) -> Split:
    return Split(
        documents=sum(shard.samples for shard in shards), tokens=sum(shard.tokens for shard in shards)
    )


def _counts(plan: Plan, split: str) -> NDArray[np.int64]:
    import numpy as np

    counts = [plan.counts(part.name) for part in plan.parts if part.split == split]
    total: NDArray[np.int64] = np.load(counts[0])
    for place in counts[1:]:
        total += np.load(place)
    return total
