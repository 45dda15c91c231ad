"""No damage to any file of a checkpoint gets in: each is refused by name, and nothing is unpickled before.

A real job of two ranks saves twice. Then bits are flipped, files cut, lost, exchanged between the ranks and
between the two checkpoints, left over from the older one, and added; one damage at a time, over every kind
of file: weights, optimizer, configuration, tokenizer, generators, manifest, signature and state.

Claimed: `open_checkpoint` refuses every one with an error of ours that names a damaged file. A flipped bit in
a tensor names that tensor and no other; a file that was cut or exchanged names tensors that are lost (of one
of torch's that was cut all are, since its table of contents is at the end). Which tensor a byte belongs to is
found out apart, by torch and by the header of the whole file. An audit hook counts what is unpickled
meanwhile: nothing.

Generators of both ranks and steps are equal here, as are configuration and tokenizer of both steps: to
exchange these is no damage, and not counted.

Not claimed: that a forger is kept out. That takes a key, and without one a signature is not looked at; so
those of the signature are tried with a key, all others without.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import secrets
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from case_studies.proofs import _data
from components.checkpoints import manifest, names, sign, state
from components.checkpoints.restore import open_checkpoint
from components.errors import CheckpointError
from components.jobs import Job
from components.launchers import local
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.training.config import Model

TITLE = "Every damage to a checkpoint is refused by name"
MODEL = Model(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, context_length=64)
OLDER, NEWER = "step-000002", "step-000004"
HOWS = ("flip", "flip", "flip", "cut", "cut", "other rank", "other step", "stale", "missing", "extra")
EXTRA = (".tmp", ".partial", "~", "-1", ".bak/model.safetensors")
"""What is added to the name of a file for one that does not belong."""

Change = Mapping[str, bytes | None]
"""What files hold now, by their path in the folder of checkpoints; None for one that is gone."""
Span = tuple[int, int, str]
"""First byte of a tensor, the byte behind its last one, its name in the manifest."""

unpickled: list[str] = []
"""Names that any unpickler of this process has looked up since the hook was set."""


@dataclass(frozen=True)
class Damage:
    """One damage, and the tensors that it hits."""

    how: str
    kind: str
    change: Change
    hit: tuple[str, ...] = ()
    """Of a flip or a cut: the tensors of which bytes were changed or lost."""


def prove(*, seed: int = 0, count: int = 1000) -> dict[str, Any]:
    """Damage a real checkpoint of two ranks that many times."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with key(folder / "key"):
            save(folder, _data.make_real(folder / "data"))
        return judged(Trial(folder / "checkpoints"), random.Random(seed), count, folder / "key")


def save(folder: Path, shards: Path) -> None:
    """Two checkpoints of two ranks under ZeRO 2, validated."""
    training = {"steps": 4, "batch_size": 4, "checkpoint_every": 2, "evaluate_every": 2}
    settings = {
        "shards": str(shards),
        "checkpoints": str(folder / "checkpoints"),
        "scratch": str(folder / "scratch"),
        "model": MODEL.model_dump(),
        "training": {**training, "held_out_sequences": 8},
        "parallelism": {"zero": {"stage": 2}},
    }
    job = Job("damage", "components.training.pretrain", settings, folder / "job", 2)
    supervise(lambda _: job, local.Config(), Limits(max_restarts=0))
    for name in (OLDER, NEWER):
        state.validate(str(folder / "checkpoints" / name), [])


def judged(trial: Trial, draw: random.Random, count: int, key_file: Path) -> dict[str, Any]:
    """Do it that many times, and count what came of it by kind of file and of damage."""
    _listen()
    before = len(unpickled)
    found: Counter[tuple[str, str, str]] = Counter()
    wrong: list[str] = []
    while found.total() < count:
        damage = trial.drawn(draw, HOWS[found.total() % len(HOWS)])
        with trial.done(damage), key(key_file, on=damage.kind == "signature"):
            outcome = judge(trial.folder, damage)
        found[damage.how, damage.kind, outcome] += 1
        if outcome not in GOOD:
            wrong.append(f"{damage.how} of {', '.join(damage.change)}: {outcome}")
    table: dict[str, dict[str, int]] = {}
    for (how, kind, outcome), times in sorted(found.items()):
        row = table.setdefault(f"{how}: {kind}", {})
        row[outcome] = times
    loaded = len(unpickled) - before
    return {
        "holds": not wrong and not loaded,
        "damages": count,
        "refused": sum(found[key] for key in found if key[2] in GOOD),
        "tensors_hit": sum(found[key] for key in found if "tensor" in key[2]),
        "unpickled": loaded,
        "wrong": wrong[:20],
        "outcomes": table,
    }


GOOD = {"refused, names the file", "refused, names file and tensor"}


def judge(folder: Path, damage: Damage) -> str:
    """What opening makes of every checkpoint that was damaged."""
    outcomes = {_judge(str(folder / name), damage) for name in (OLDER, NEWER) if _touches(damage, name)}
    return min(outcomes - GOOD, default=min(outcomes))


def _touches(damage: Damage, checkpoint: str) -> bool:
    return any(path.startswith((f"{checkpoint}/", checkpoint + names.STATE)) for path in damage.change)


def _judge(checkpoint: str, damage: Damage) -> str:
    try:
        open_checkpoint(checkpoint)
    except CheckpointError as refusal:
        told = str(refusal)
    except Exception as error:
        return f"CRASHED: {type(error).__name__}: {error}"
    else:
        return "ACCEPTED"
    files = [path.removeprefix(f"{names.name_of(checkpoint)}/") for path in damage.change]
    if not any(file in told for file in files):
        return f"NAMES NO FILE: {told}"
    if not damage.hit:
        return "refused, names the file"
    named = set(re.findall(r"'([^']+)'", told))
    right = named == set(damage.hit) if damage.how == "flip" else named and named <= set(damage.hit)
    return "refused, names file and tensor" if right else f"NAMES NOT {damage.hit[0]}: {told}"


class Trial:
    """Two whole checkpoints, and damages done and undone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.whole = {path.relative_to(folder).as_posix(): path.read_bytes() for path in _files(folder)}
        self.tensors = {path: _tensors(folder / path) for path in self.whole}
        self.makers: dict[str, Callable[[random.Random, str], Damage | None]] = {
            "flip": self._flip,
            "cut": self._cut,
            "other rank": self._other_rank,
            "other step": partial(self._other_step, both=True),
            "stale": partial(self._other_step, both=False),
            "missing": self._missing,
            "extra": self._extra,
        }

    def drawn(self, draw: random.Random, how: str) -> Damage:
        """A damage of this sort that changes something, every kind of file being as likely."""
        while True:
            wanted = draw.choice(sorted({kind_of(path) for path in self.whole}))
            path = draw.choice(
                [path for path in self.whole if path.startswith(NEWER) and kind_of(path) == wanted]
            )
            damage = self.makers[how](draw, path)
            if damage is not None and any(self.whole.get(at) != now for at, now in damage.change.items()):
                return damage

    @contextmanager
    def done(self, damage: Damage) -> Iterator[None]:
        """A damage, for as long as this lasts."""
        for path, content in damage.change.items():
            self._put(path, content)
        try:
            yield
        finally:
            for path in damage.change:
                self._put(path, self.whole.get(path))

    def _put(self, name: str, content: bytes | None) -> None:
        path = self.folder / name
        if content is None:
            path.unlink()
            if not any(path.parent.iterdir()):
                path.parent.rmdir()
            return
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def _flip(self, draw: random.Random, path: str) -> Damage:
        """One bit, half of the times of a tensor where there are any."""
        content, spans = bytearray(self.whole[path]), self.tensors[path]
        start, end, _ = draw.choice(spans) if spans and draw.random() < 0.5 else (0, len(content), "")
        offset = draw.randrange(start, end)
        content[offset] ^= 1 << draw.randrange(8)
        hit = tuple(name for start, end, name in spans if start <= offset < end)
        return Damage("flip", kind_of(path), {path: bytes(content)}, hit)

    def _cut(self, draw: random.Random, path: str) -> Damage:
        """A random end; or nothing is left."""
        content, spans = self.whole[path], self.tensors[path]
        length = draw.randrange(len(content)) if draw.random() < 0.9 else 0
        hit = tuple(name for _, end, name in spans if end > length or path.endswith(".pt"))
        return Damage("cut", kind_of(path), {path: content[:length]}, hit)

    def _other_rank(self, draw: random.Random, path: str) -> Damage | None:
        """The files of two ranks, exchanged."""
        for one, other in (("rank_0", "rank_1"), ("rank_1", "rank_0"), ("rank-00000", "rank-00001")):
            if one in path and (twin := path.replace(one, other)) in self.whole:
                change: Change = {path: self.whole[twin], twin: self.whole[path]}
                return Damage("other rank", kind_of(path), change, self._names(path))
        return None

    def _other_step(self, draw: random.Random, path: str, *, both: bool) -> Damage | None:
        """The files of two checkpoints, exchanged; or the older one's left in the newer one."""
        twin = path.replace(NEWER, OLDER)
        older, newer = self.whole[twin], self.whole[path]
        if both:
            return Damage("other step", kind_of(path), {path: older, twin: newer}, self._names(path))
        return Damage("stale", kind_of(path), {path: older}, self._names(path))

    def _missing(self, draw: random.Random, path: str) -> Damage:
        return Damage("missing", kind_of(path), {path: None})

    def _extra(self, draw: random.Random, path: str) -> Damage | None:
        """A copy under a name that is not in the manifest."""
        if kind_of(path) == "state":
            return None  # beside a checkpoint nobody asks what else there is
        return Damage("extra", kind_of(path), {path + draw.choice(EXTRA): self.whole[path]})

    def _names(self, path: str) -> tuple[str, ...]:
        return tuple(name for _, _, name in self.tensors[path])


def kind_of(path: str) -> str:
    """What a file of a checkpoint is, by its path."""
    if path.endswith(names.STATE):
        return "state"
    name = path.partition("/")[2]
    known: Mapping[str, str] = {
        manifest.NAME: "manifest",
        manifest.SIGNATURE: "signature",
        "model.safetensors": "weights",
        "config.json": "configuration",
        "generation_config.json": "configuration",
        "tokenizer.json": "tokenizer",
        "tokenizer_config.json": "tokenizer",
    }
    if name.startswith("random/"):
        return "generators"
    if name.startswith("deepspeed/"):
        return "optimizer" if "optim_states" in name else "weights for DeepSpeed"
    return known[name]


@contextmanager
def key(path: Path, *, on: bool = True) -> Iterator[None]:
    """A key that signs and verifies, made when it is not there."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    was = os.environ.pop(sign.VARIABLE, None)
    if on:
        os.environ[sign.VARIABLE] = str(path)
    try:
        yield
    finally:
        os.environ.pop(sign.VARIABLE, None)
        if was is not None:
            os.environ[sign.VARIABLE] = was


def _files(folder: Path) -> list[Path]:
    """Of the two checkpoints; the pointer beside them is a convenience that nothing here trusts."""
    found = [path for name in (OLDER, NEWER) for path in folder.glob(f"{name}/**/*") if path.is_file()]
    return sorted([*found, *folder.glob(f"step-*{names.STATE}")])


def _tensors(path: Path) -> list[Span]:
    """Where the tensors of a whole file lie, found with nothing of ours."""
    if path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        header = json.loads(path.read_bytes()[8 : 8 + length])
        places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        return sorted((8 + length + start, 8 + length + end, name) for name, (start, end) in places.items())
    return _torch_tensors(path) if path.suffix == ".pt" else []


def _torch_tensors(path: Path) -> list[Span]:
    """torch maps a file as a whole, so the first address of its records tells the place of every tensor."""
    import torch

    reader = torch._C.PyTorchFileReader(str(path))
    records = sorted(
        reader.get_record_offset(name) for name in reader.get_all_records() if name.startswith("data/")
    )
    content = torch.load(path, weights_only=False, map_location="cpu", mmap=True)
    found = {tensor.data_ptr(): (tensor, name) for name, tensor in _named(content)}
    shift = min(found) - records[0]
    spans = sorted((at - shift, at - shift + tensor.nbytes, name) for at, (tensor, name) in found.items())
    assert [start for start, _, _ in spans] == records, "every record is one tensor, and all were found"
    return spans


def _named(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The tensors of DeepSpeed's files, by the names that the manifest uses."""
    if "module" in content:
        yield from ((name, weight) for name, weight in content["module"].items() if name != "lm_head.weight")
        return
    held = content["optimizer_state_dict"]
    yield from ((f"master.{i}", master) for i, master in enumerate(held["single_partition_of_fp32_groups"]))
    for i, moments in enumerate(held["base_optimizer_state"]["state"].values()):
        yield from ((f"{kind}.{i}", value) for kind, value in moments.items())


def _listen() -> None:
    """Count what Python's unpickler looks up, from now to the end of the process: a hook is never removed."""

    def hook(event: str, told: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            unpickled.append(str(told))

    if not unpickled:
        sys.addaudithook(hook)
        pickle.loads(pickle.dumps(Path))
        assert unpickled, "the hook hears"
