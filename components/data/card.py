"""A data set in words, from its manifest: what a person reads before training on it."""

from __future__ import annotations

from components.data.manifest import Manifest


def card(manifest: Manifest, url: str) -> str:
    """The data set's card, in markdown."""
    source = manifest.source
    splits = "\n".join(
        f"| {name} | {split.documents:,} | {split.tokens:,} | {len(manifest.shards_of(name))} |"
        for name, split in manifest.splits.items()
    )
    left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.set_aside.items()) or "none"
    return f"""# Data set from `{source.kind}`

`{url}`

| split | documents | tokens | shards |
|---|---:|---:|---:|
{splits}

- Read: {source.documents:,} documents, {source.characters:,} characters, digest `{source.digest[:12]}`
- Set aside: {left_out}
- Vocabulary: {manifest.vocab_size:,} entries, tokenizer `{manifest.tokenizer_sha256[:12]}`
- A model that only counts tokens scores {manifest.unigram_cross_entropy:.3f} nats per held-out token
"""
