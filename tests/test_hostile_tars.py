"""Data from anybody is safe to open: nothing runs, nothing is written, and each trick is a named error."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from case_studies.proofs import _data
from components import storage
from components.data import index, manifest, tar
from components.data.integrity import check_dataset
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.stream import TokenStream
from components.errors import ConfigError, DataError, ShardIntegrityError

NAME = "train-000000.tar"


class Payload:
    """What runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that appears when anything of a hostile data set was executed or extracted."""
    return tmp_path / "PWNED"


@pytest.fixture(autouse=True)
def nothing_happens(tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every trick is tried from an empty folder, beside a neighbour; neither may change."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "neighbour.txt").write_text("untouched")
    monkeypatch.chdir(tmp_path / "empty")
    yield
    assert not mark.exists(), "hostile data was executed"
    assert list((tmp_path / "empty").iterdir()) == []
    assert (tmp_path / "neighbour.txt").read_text() == "untouched"


def member(name: str, content: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes], style: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=style) as made:
        for info, content in members:
            made.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return file.getvalue()


def array(tokens: int = 3) -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(tokens, dtype=np.uint16))
    return file.getvalue()


def facts(**changed: object) -> bytes:
    given = {"path": "a", "sha256": "0" * 64, "source": "", "split": "train", **changed}
    return json.dumps(given, sort_keys=True).encode()


def plain(key: str, kind: str, content: bytes) -> bytes:
    return tar.header(f"{key}.{kind}".encode(), len(content)) + content + tar.padding(len(content))


def sample(key: str = "k", npy: bytes | None = None, **others: bytes) -> bytes:
    npy = array() if npy is None else npy
    contents = {"json": facts(), "npy": npy, "txt": b"text", **others}
    return b"".join(plain(key, kind, contents[kind]) for kind in tar.MEMBERS)


def closed(content: bytes) -> bytes:
    return content + tar.end(len(content))


def with_size(field: bytes) -> bytes:
    """A header whose size is written in another way, its own checksum right."""
    head = bytearray(tar.header(b"k.json", 1))
    head[124:136] = field
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return closed(bytes(head) + b"x" + tar.padding(1))


def hostile_tars(mark: Path) -> dict[str, bytes]:
    attack = pickle.dumps(Payload(mark))
    link = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0}
    hard = {"type": tarfile.LNKTYPE, "linkname": "../neighbour.txt", "size": 0}
    return {
        "path traversal": archive(member("../neighbour.txt")),
        "absolute name": archive(member(str(mark))),
        "name with a folder": archive(member("a/k.txt")),
        "symbolic link": archive(member("k.txt", **link)),
        "hard link": archive(member("k.txt", **hard)),
        "character device": archive(member("k.txt", type=tarfile.CHRTYPE, size=0, devmajor=1, devminor=5)),
        "fifo": archive(member("k.txt", type=tarfile.FIFOTYPE, size=0)),
        "folder": archive(member("k.txt", type=tarfile.DIRTYPE, size=0)),
        "pax header": archive(member("ü" * 60 + ".txt"), style=tarfile.PAX_FORMAT),
        "pax header that renames": archive(
            member("k.txt", pax_headers={"path": "../neighbour.txt"}), style=tarfile.PAX_FORMAT
        ),
        "GNU long name": archive(member("k" * 200 + ".txt"), style=tarfile.GNU_FORMAT),
        "sparse file": archive(member("k.txt", type=tarfile.GNUTYPE_SPARSE), style=tarfile.GNU_FORMAT),
        "setuid": archive(member("k.json", mode=0o4755)),
        "huge size": with_size(b"77777777777\0"),
        "size beyond the end": with_size(b"00000010000\0"),
        "negative size": with_size(b"-0000000001\0"),
        "size in base 256": with_size(b"\x80" + b"\0" * 10 + b"\x01"),
        "size that is no number": with_size(b"0x000000001\0"),
        "pickle": archive(member("k.pkl", attack)),
        "pickle by another name": archive(member("k.pyd", attack)),
        "torch file": archive(member("k.pth", attack)),
        "array of objects": closed(sample(npy=_objects(mark))),
        "pickle instead of an array": closed(sample(npy=attack)),
        "zip instead of an array": closed(sample(npy=_zip())),
        "array whose header is code": closed(sample(npy=_code(f"__import__('os').system('touch {mark}')"))),
        "array that claims petabytes": closed(sample(npy=_code(_header("(1000000000000000,)")))),
        "array with a deep header": closed(sample(npy=_code("(" * 5000))),
        "array of another shape": closed(sample(npy=_saved(np.zeros((2, 2), np.uint16)))),
        "array of other numbers": closed(sample(npy=_saved(np.zeros(3, np.float64)))),
        "sample twice in a row": closed(sample("a") + sample("a")),
        "sample twice apart": closed(sample("a") + sample("b") + sample("a")),
        "member twice": closed(plain("a", "json", facts()) + sample("a")),
        "members apart": closed(plain("a", "json", facts()) + sample("b") + plain("a", "npy", array())),
        "member left out": closed(plain("a", "json", facts()) + plain("a", "txt", b"t")),
        "key with a dot": archive(member("doc.v1.txt"), member("doc.v2.txt")),
        "second archive behind the end": closed(sample()) + closed(sample("b")),
        "no end": sample(),
        "facts nested deeply": closed(sample(json=b"[" * 100_000)),
        "facts that are none": closed(sample(json=b"17")),
        "no tar at all": b"#!/bin/sh\ntouch PWNED\n" * 40,
        "gzip": b"\x1f\x8b" + bytes(1000),
    }


def _objects(mark: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Payload(mark)], dtype=object), allow_pickle=True)
    return file.getvalue()


def _zip() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3, np.uint16))
    return file.getvalue()


def _saved(content: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, content)
    return file.getvalue()


def _header(shape: str) -> str:
    return f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}"


def _code(header: str) -> bytes:
    text = header.encode().ljust(-(-(len(header) + 11) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(6)


HOSTILE = sorted(hostile_tars(Path("/nowhere")))


def vouched(folder: Path, content: bytes, rows: index.Index | None = None, tokens: int = 3) -> str:
    """A data set whose maker is the attacker: every digest is right."""
    folder.mkdir()
    if rows is None:
        rows = np.zeros(1, index.SAMPLE)
        place = (tar.BLOCK, 1, 0)
        rows[0] = (b"k", 0, 1, tokens, place, place, place)
    (folder / NAME).write_bytes(content)
    (folder / "train-000000.index.npy").write_bytes(index.to_bytes(rows))
    entry = {
        name: (storage.sha256_of_file(folder / name), (folder / name).stat().st_size)
        for name in (NAME, "train-000000.index.npy")
    }
    shard = manifest.Shard(
        name=NAME,
        split="train",
        sha256=entry[NAME][0],
        bytes=entry[NAME][1],
        samples=len(rows),
        tokens=int(rows["tokens"].sum()),
        index_sha256=entry["train-000000.index.npy"][0],
        index_bytes=entry["train-000000.index.npy"][1],
    )
    _data.write_manifest(folder, [shard])
    return str(folder)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tar_is_refused_even_with_right_digests(name: str, mark: Path, tmp_path: Path) -> None:
    url = vouched(tmp_path / "data", hostile_tars(mark)[name])
    with pytest.raises(ShardIntegrityError, match=r"train-000000"):
        check_dataset(url)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_reader_of_a_hostile_tar_gets_an_error_and_nothing_else(
    name: str, mark: Path, tmp_path: Path
) -> None:
    """The index is the attacker's too, and its checksums are those of what lies there."""
    content = hostile_tars(mark)[name]
    starts = [at for at in range(tar.BLOCK, len(content), tar.BLOCK)]
    url = vouched(tmp_path / "data", content, _rows_of_any(content, starts))
    with Reader(url) as reader:
        shard = reader.manifest.shards[0]
        for row in range(shard.samples):
            with pytest.raises(ShardIntegrityError):
                reader.sample(shard, row)
            with pytest.raises(ShardIntegrityError):
                reader.tokens(shard, row)


def _rows_of_any(content: bytes, starts: list[int]) -> index.Index:
    """An index that calls every block of the tar a member of every kind."""
    rows = np.zeros(len(starts) or 1, index.SAMPLE)
    for row, start in enumerate(starts or [0]):
        piece = content[start : start + 2 * tar.BLOCK]
        place = (start, len(piece), index.checksum(piece))
        rows[row] = (b"k", 0, len(piece), 400, place, place, place)
    return rows


def test_more_members_than_allowed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "MAX_MEMBERS", 5)
    url = vouched(tmp_path / "data", closed(sample("a") + sample("b")))
    with pytest.raises(ShardIntegrityError, match="more than 5 members"):
        check_dataset(url)


LYING = {
    "beyond the tar": {"start": 1 << 40},
    "so far that it wraps": {"start": (1 << 64) - 100, "bytes": 200},
    "larger than the tar": {"bytes": (1 << 32) - 1},
}


@pytest.mark.parametrize("place", LYING.values(), ids=LYING)
def test_an_index_that_points_out_of_its_tar_is_refused(tmp_path: Path, place: dict[str, int]) -> None:
    content = closed(sample())
    with io.BytesIO(content) as file:
        rows = index.of_members(tar.scan(file, NAME), NAME).copy()
    for field, value in place.items():
        rows["npy"][field] = value
    url = vouched(tmp_path / "data", content, rows)
    with Reader(url) as reader:
        with pytest.raises(ShardIntegrityError, match="does not fit"):
            TokenStream(reader, "train", sequence_length=2, batch_size=1, seed=0).batch(0)
        with pytest.raises(ShardIntegrityError, match="does not fit"):
            SampleStream(reader, "train")[0]
    with pytest.raises(ShardIntegrityError, match="not the index of its tar"):
        check_dataset(url)


def test_an_index_that_lies_about_tokens_is_refused(tmp_path: Path) -> None:
    content = closed(sample())
    with io.BytesIO(content) as file:
        rows = index.of_members(tar.scan(file, NAME), NAME).copy()
    rows["tokens"] = 100
    url = vouched(tmp_path / "data", content, rows)
    with Reader(url) as reader, pytest.raises(ShardIntegrityError, match="holds 3 ids"):
        TokenStream(reader, "train", sequence_length=50, batch_size=1, seed=0).batch(0)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04" + bytes(60), pickle.dumps(1), _code(_header("(10,)")), _code("1+1")]
)
def test_a_sidecar_that_is_no_index_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ShardIntegrityError, match="is no index"):
        index.from_bytes(content, NAME)


ARRAYS: dict[str, Callable[[Path], bytes]] = {
    "objects": _objects,
    "pickle": lambda mark: pickle.dumps(Payload(mark)),
    "zip": lambda mark: _zip(),
    "code": lambda mark: _code(f"__import__('os').system('touch {mark}')"),
    "petabytes": lambda mark: _code(_header("(1000000000000000,)")),
    "deep": lambda mark: _code("(" * 5000),
    "no digits": lambda mark: _code(_header("(-3,)")),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_no_array_is_opened_but_token_ids(mark: Path, make: Callable[[Path], bytes]) -> None:
    with pytest.raises(ShardIntegrityError, match=r"k\.npy holds no token ids"):
        index.array_of(make(mark), NAME, "k")


# Manifests and URLs


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return _data.make(tmp_path / "good", _data.UNEVEN)


def rewritten(folder: Path, change: Callable[[dict], object]) -> str:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    return str(folder)


SHARD_NAMES = [
    "pipe:touch PWNED.tar",
    "../train-000000.tar",
    "/etc/passwd",
    "http://x/train-000000.tar",
    "a\n.tar",
]


@pytest.mark.parametrize("name", SHARD_NAMES)
def test_a_manifest_names_no_shard_outside_of_its_folder(good: Path, name: str) -> None:
    url = rewritten(good, lambda content: content["shards"][0].update(name=name))
    for read in (check_dataset, Reader):
        with pytest.raises(ShardIntegrityError, match=r"manifest\.json"):
            read(url)


@pytest.mark.parametrize("name", ["../neighbour.txt", "/etc/passwd", "pipe:id", "a/b", "..", ".", ""])
def test_a_manifest_names_no_other_file_outside_of_its_folder(good: Path, name: str) -> None:
    entry = {"sha256": storage.sha256_of_bytes(b"untouched"), "bytes": 9}
    url = rewritten(good, lambda content: content["files"].update({name: entry}))
    for read in (check_dataset, Reader):
        with pytest.raises(ShardIntegrityError, match=r"manifest\.json"):
            read(url)


@pytest.mark.parametrize("url", ["pipe:touch PWNED", "simplecache::pipe:touch PWNED", "shell://x", "tar://a"])
def test_a_data_set_is_opened_by_no_url_that_runs_something(url: str, tmp_path: Path) -> None:
    for read in (check_dataset, Reader):
        with pytest.raises((ConfigError, DataError)):
            read(url)


BOMBS = {
    "nested": lambda content: content["source"].update(settings=_nested(5000)),
    "a number of many digits": lambda content: content["shards"][0].update(samples=10**4000),
    "more samples than memory": lambda content: (
        content["shards"][0].update(samples=10**11, tokens=10**11),
        content["splits"]["train"].update(documents=10**11, tokens=10**11),
    ),
    "a hundred thousand shards that are not there": lambda content: content["shards"].extend(
        {**content["shards"][0], "name": f"train-{number:06d}.tar"} for number in range(100, 100_100)
    ),
}


def _nested(depth: int) -> object:
    found: object = 0
    for _ in range(depth // 10):
        found = {"a": found}
    return found


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_manifest_bomb_is_an_error_not_an_outage(good: Path, bomb) -> None:
    with pytest.raises(ShardIntegrityError):
        check_dataset(rewritten(good, bomb))


# What the stock reader makes of the same

quiet_webdataset = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@quiet_webdataset
def test_stock_webdataset_runs_the_pickle_that_is_refused_here(tmp_path: Path, mark: Path) -> None:
    """Why members are three kinds by name; upstream knows, and has a switch that is off."""
    import webdataset as wds

    (tmp_path / NAME).write_bytes(archive(member("k.pkl", pickle.dumps(Payload(mark)))))
    list(wds.WebDataset([str(tmp_path / NAME)], shardshuffle=False).decode())
    gc.collect()
    assert mark.exists()
    mark.unlink()


@quiet_webdataset
def test_stock_webdataset_runs_a_shell_for_a_name_that_is_refused_here(tmp_path: Path, mark: Path) -> None:
    import webdataset as wds

    (tmp_path / NAME).write_bytes(closed(sample()))
    command = f"pipe:cat {tmp_path / NAME}; touch {mark}"
    assert len(list(wds.WebDataset([command], shardshuffle=False))) == 1
    gc.collect()
    assert mark.exists()
    mark.unlink()


@quiet_webdataset
def test_stock_webdataset_merges_the_keys_that_are_refused_here(tmp_path: Path) -> None:
    import webdataset as wds

    (tmp_path / NAME).write_bytes(archive(member("doc.v1.txt"), member("doc.v2.txt")))
    [merged] = wds.WebDataset([str(tmp_path / NAME)], shardshuffle=False)
    gc.collect()
    assert {"v1.txt", "v2.txt"} <= set(merged)
