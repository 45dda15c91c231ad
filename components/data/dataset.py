"""From kept documents to a published data set: shards, tokenizer and, last of all, the manifest."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components import contents, storage
from components.data import manifest as manifests
from components.data import unigram
from components.data.curation.checked import Checked
from components.data.document import Document
from components.data.manifest import Manifest, Shard, Source, Split
from components.data.shards import Config, Sample, split_documents, write_shard
from components.data.tokenizer import encode, save
from components.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)


def make_dataset(
    checked: Checked, tokenizer: Tokenizer, url: str, *, kind: str, config: Config, scratch: Path
) -> Manifest:
    """Build a data set in a scratch folder and publish it whole; what a crash left there is swept first."""
    folder = scratch / "data_set"
    if folder.exists():
        logger.warning("sweeping what an earlier run left in %s", folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    manifest = build(checked, tokenizer, folder, kind=kind, config=config)
    publish(folder, url)
    return manifest


def build(checked: Checked, tokenizer: Tokenizer, folder: Path, *, kind: str, config: Config) -> Manifest:
    """Write every file of a data set into an empty local folder."""
    shards: list[Shard] = []
    counts: dict[str, NDArray[Any]] = {}
    for split, documents in split_documents(checked.kept, config).items():
        written, counts[split] = _write_split(documents, tokenizer, folder, split, config)
        shards += written
    save(tokenizer, folder)
    manifest = Manifest(
        shards=shards,
        source=Source(
            kind=kind, digest=checked.digest, documents=checked.documents, characters=checked.characters
        ),
        files={name: contents.entry(folder / name) for name in ("tokenizer.json", "tokenizer_config.json")},
        vocab_size=tokenizer.get_vocab_size(),
        splits={split: _size(shards, split) for split in counts},
        unigram_cross_entropy=unigram.cross_entropy(counts["train"], counts["held_out"]),
        set_aside=checked.reasons,
    )
    storage.write_bytes(str(folder / manifests.NAME), manifests.to_bytes(manifest))
    return manifest


def publish(folder: Path, url: str) -> None:
    """Move a built data set to its place; the same one there already is welcome, another is an error."""
    if not storage.exists(storage.join(url, manifests.NAME)):
        storage.publish_folder(folder, url, last=manifests.NAME)
        return
    if manifests.digest(url) != manifests.digest(str(folder)):
        raise DataError(
            f"{url} already holds another data set, and a published one never changes; "
            f"remove that folder, or start another run with --set edition=WORD"
        )
    shutil.rmtree(folder)


def _write_split(
    documents: Sequence[Document], tokenizer: Tokenizer, folder: Path, split: str, config: Config
) -> tuple[list[Shard], NDArray[Any]]:
    import numpy as np

    shards: list[Shard] = []
    counts = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for number, part in enumerate(_parts(documents, config.documents_per_shard)):
        tokens = encode(tokenizer, [document.text for document in part])
        samples = [Sample(document, split, ids) for document, ids in zip(part, tokens, strict=True)]
        shards.append(write_shard(folder / f"{split}-{number:06d}.tar", split, samples))
        counts += np.bincount(np.concatenate(tokens), minlength=len(counts))
    return shards, counts


def _parts(documents: Sequence[Document], size: int) -> Iterator[Sequence[Document]]:
    for start in range(0, len(documents), size):
        yield documents[start : start + size]


def _size(shards: list[Shard], split: str) -> Split:
    of_split = [shard for shard in shards if shard.split == split]
    return Split(
        documents=sum(shard.samples for shard in of_split), tokens=sum(shard.tokens for shard in of_split)
    )
