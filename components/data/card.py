"""A data set in words, from its manifest: what a person reads before training on it."""

from __future__ import annotations

from components.data.manifest import Manifest


def card(manifest: Manifest, url: str) -> str:
    """The data set's card, in markdown."""
    source = manifest.source
    left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.set_aside.items()) or "none"
    return f"""# Data set from `{source.kind}`

`{url}`

| split | source | documents | tokens | shards |
|---|---|---:|---:|---:|
{_rows(manifest)}

- Read: {source.documents:,} documents, {source.characters:,} characters, digest `{source.digest[:12]}`
- Set aside: {left_out}; each with its reason in `set_aside.jsonl`
- Vocabulary: {manifest.vocab_size:,} entries, tokenizer `{manifest.tokenizer_sha256[:12]}`
- A model that only counts tokens scores {manifest.unigram_cross_entropy:.3f} nats per held-out token
- {_packing(manifest)}
"""


def _rows(manifest: Manifest) -> str:
    rows = []
    for split, whole in manifest.splits.items():
        parts = manifest.sources.get(split, {})
        for name, size in [*parts.items(), ("all", whole)] if len(parts) > 1 else [("all", whole)]:
            shards = manifest.shards_of(split, None if name == "all" else name)
            rows.append(f"| {split} | {name} | {size.documents:,} | {size.tokens:,} | {len(shards)} |")
    return "\n".join(rows)


def _packing(manifest: Manifest) -> str:
    """What sequence length suits: longer documents are cut, much shorter ones share a sequence with many."""
    train = manifest.splits["train"]
    mean = train.tokens / max(train.documents, 1)
    return (
        f"A train document has {mean:,.0f} tokens on average: of sequences of 1,024 the split fills about "
        f"{train.tokens // 1024:,}, of 4,096 about {train.tokens // 4096:,}"
    )
