"""Raw text to verified shards: read a source, check it, learn its tokens, write and read back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prefect import flow

from components.config import Profile, Run
from components.data import manifest as manifests
from components.data.manifest import Manifest
from components.records import Artifact, Record, Stage
from components.stages import open_for
from tasks.check_shards import check_shards
from tasks.check_source import check_source
from tasks.show_dataset import show_dataset
from tasks.train_tokenizer import train_tokenizer
from tasks.write_shards import write_shards


@flow(name="shard_dataset")
def shard_dataset(run: Run, profile: Profile) -> Record:
    """Keep the documents that pass the checks, train a tokenizer on them, publish verified shards."""
    data = run.data
    with open_for(run, profile, "shard_dataset", settings=data.model_dump(mode="json"), inputs=[]) as stage:
        if stage.done is None:
            with _timed(stage, "check_source"):
                checked = check_source(data, stage.folder)
            with _timed(stage, "train_tokenizer"):
                tokenizer = train_tokenizer(checked, data)
            with _timed(stage, "write_shards"):
                url = write_shards(checked, tokenizer, data, profile.sharding, stage.folder)
            with _timed(stage, "check_shards"):
                manifest = check_shards(url)
            shutil.rmtree(stage.folder.scratch("curation"))  # the documents are in the shards now
            stage.verdicts += checked.verdicts
            _note(stage, manifest, url)
            stage.outputs.append(show_dataset(url, stage.folder))
    return stage.record


@contextmanager
def _timed(stage: Stage, step: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    stage.metrics.setdefault("seconds", {})[step] = round(time.monotonic() - started, 2)


def _note(stage: Stage, manifest: Manifest, url: str) -> None:
    stage.outputs.append(Artifact(name="shards", url=url, digest=manifests.digest(url)))
    stage.metrics |= {
        "documents": manifest.source.documents,
        "characters": manifest.source.characters,
        "set_aside": manifest.set_aside,
        "shards": len(manifest.shards),
        "tokens": {name: split.tokens for name, split in manifest.splits.items()},
        "documents_per_split": {name: split.documents for name, split in manifest.splits.items()},
        "vocab_size": manifest.vocab_size,
        "unigram_cross_entropy": manifest.unigram_cross_entropy,
    }
