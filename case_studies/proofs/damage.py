"""No flipped bit and no cut, in any file of a data set, changes a byte that a reader hands out.

Tars, indexes, the manifest and the files beside them are damaged one at a time: a random bit, or a random
end, of tars also at the boundary of a member. Claimed: `check_dataset` refuses every one. A reader (of token
sequences, of texts, of whole documents, of the tokenizer) either refuses, or hands out exactly what it would
have without the damage, since the damage lies in bytes that it does not use. Nothing else happens: no other
exception, no shorter epoch.

The manifest needs its digest, which the record of the stage that made it holds: with it every change is
refused. Without it a change that leaves valid JSON may be in a field that nothing else says again; the table
counts those fields.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from case_studies.proofs import _data
from components.data import manifest as manifests
from components.data import tar, tokenizer
from components.data.integrity import check_dataset
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.stream import TokenStream
from components.errors import DataError

TITLE = "Every damage is refused, or harms no byte that is read"
KINDS = ("tar", "index", "manifest", "other")
CUT_SHARE = 0.25

Delivered = list[bytes]
Consumer = Callable[[Path, str | None], Delivered]


@dataclass(frozen=True)
class Damage:
    """One change of one file."""

    name: str
    kind: str
    content: bytes
    """What the file holds now."""


def prove(*, seed: int = 0, count: int = 1000) -> dict[str, Any]:
    """Damage a real data set that many times, and count by kind of file, who reads it, and what happened."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = _data.make_real(Path(scratch) / "data")
        found = Trial(folder).run(random.Random(seed), count)
    refused = all(set(row) == {"refused"} for name, row in found.items() if "check" in name)
    readers = [row for name, row in found.items() if "without digest" not in name]
    return {
        "holds": refused_without_manifest(found) and refused and all(set(row) <= GOOD for row in readers),
        "damages": count,
        "outcomes": {name: dict(sorted(row.items())) for name, row in sorted(found.items())},
    }


GOOD = {"refused", "identical"}


def refused_without_manifest(found: dict[str, Counter[str]]) -> bool:
    """Even without the digest of the manifest, no reader fails in another way or gets other samples."""
    rows = [row for name, row in found.items() if "without digest" in name and "fields" not in name]
    return all(set(row) <= GOOD | {"accepted", "another order"} for row in rows)


class Trial:
    """A whole data set, what it delivers, and damages done and undone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole = {path.name: path.read_bytes() for path in _data.files_of(folder)}
        self.digest = manifests.digest(str(folder))
        self.delivered = {name: read(folder, self.digest) for name, read in CONSUMERS.items()}
        self.found: dict[str, Counter[str]] = {}

    def run(self, draw: random.Random, count: int) -> dict[str, Counter[str]]:
        """Do it that many times, every kind of file in turn."""
        for turn in range(count):
            damage = self.drawn(draw, KINDS[turn % len(KINDS)])
            path = self.folder / damage.name
            path.write_bytes(damage.content)
            self._judge(damage)
            path.write_bytes(self.whole[damage.name])
        return self.found

    def drawn(self, draw: random.Random, kind: str) -> Damage:
        """A flip or a cut of a file of some kind."""
        name = draw.choice([name for name in self.whole if kind_of(name) == kind])
        content = self.whole[name]
        if draw.random() >= CUT_SHARE:
            changed = bytearray(content)
            changed[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            return Damage(name, kind, bytes(changed))
        ends = list(range(0, len(content), tar.BLOCK)) if kind == "tar" and draw.random() < 0.5 else None
        return Damage(name, kind, content[: draw.choice(ends) if ends else draw.randrange(len(content))])

    def _judge(self, damage: Damage) -> None:
        self._count(f"{damage.kind}: check", outcome(self._check, damage, self.digest))
        for name in CONSUMERS:
            self._count(f"{damage.kind}: {name}", outcome(self._read, name, self.digest))
        if damage.kind == "manifest":
            accepted = outcome(self._check, damage, None)
            self._count("manifest: accepted without digest", accepted)
            if accepted == "accepted":
                self._count("manifest: fields of those accepted without digest", self._changed())
            for name in CONSUMERS:
                self._count(f"manifest: {name}, without digest", outcome(self._read, name, None))

    def _check(self, _: Damage, digest: str | None) -> str:
        check_dataset(str(self.folder), digest=digest)
        return "accepted"

    def _read(self, name: str, digest: str | None) -> str:
        delivered = CONSUMERS[name](self.folder, digest)
        if delivered == self.delivered[name]:
            return "identical"
        same = sorted(delivered) == sorted(self.delivered[name])
        return "another order" if same and digest is None else "OTHER DATA"

    def _changed(self) -> str:
        """The field of a manifest that is not what it was."""
        now = manifests.read(str(self.folder)).model_dump()
        was = manifests.parse(self.whole[manifests.NAME], "").model_dump()
        return next((name for name in was if was[name] != now[name]), "none: white space")

    def _count(self, name: str, result: str) -> None:
        self.found.setdefault(name, Counter())[result] += 1


def outcome(judge: Callable[..., str], *arguments: Any) -> str:
    """What happened; an error that is not one of ours counts by its own name."""
    try:
        return judge(*arguments)
    except DataError:
        return "refused"
    except Exception as error:
        return f"CRASHED: {type(error).__name__}"


def kind_of(name: str) -> str:
    """Tar, index, manifest or other."""
    if name == manifests.NAME:
        return "manifest"
    return "tar" if name.endswith(".tar") else "index" if name.endswith(".index.npy") else "other"


def _sequences(folder: Path, digest: str | None) -> Delivered:
    with Reader(str(folder), digest=digest) as reader:
        stream = TokenStream(reader, "train", sequence_length=128, batch_size=32, seed=5)
        batches = [stream.batch(step) for step in range(-(-stream.num_sequences // 32))]
        rows = [np.stack(row) for one in batches for row in zip(*vars(one).values(), strict=True)]
        return [row.tobytes() for row in rows[: stream.num_sequences]]


def _texts(folder: Path, digest: str | None) -> Delivered:
    with Reader(str(folder), digest=digest) as reader:
        stream = SampleStream(reader, "train", seed=5)
        return list(stream.read(0, len(stream)))


def _documents(folder: Path, digest: str | None) -> Delivered:
    with Reader(str(folder), digest=digest) as reader:
        samples = [reader.sample(shard, i) for shard in reader.manifest.shards for i in range(shard.samples)]
        return [repr((one.document, one.split, one.tokens.tolist())).encode() for one in samples]


def _tokenizer(folder: Path, digest: str | None) -> Delivered:
    manifest, _ = manifests.read_with_digest(str(folder), digest)
    with tempfile.TemporaryDirectory() as scratch:
        copy = tokenizer.fetch(str(folder), manifest, Path(scratch))
        return [(copy / name).read_bytes() for name in tokenizer.FILES]


CONSUMERS: dict[str, Consumer] = {
    "sequences": _sequences,
    "texts": _texts,
    "documents": _documents,
    "tokenizer": _tokenizer,
}
