"""A sample that cannot be read ends the job, or is a row of a table within a budget over all processes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.data.document import Document, document_of
from components.data.manifest import Shard
from components.data.mending.quarantine import Policy, Quarantine, table
from components.data.packing import Config as Packing
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.stream import IGNORED, PADDING, TokenStream
from components.errors import ShardIntegrityError

ROOT = Path(__file__).parent.parent
LENGTH, BATCH = 32, 4


@pytest.fixture(scope="module")
def ten(make_shards: Callable[[list[Document]], Path]) -> Path:
    """Ten shards of train."""
    texts = [f"def function_{i}(x):\n    return x * {i * i}\n" * (3 + i % 5) for i in range(110)]
    url = make_shards([document_of(text.encode(), f"{i}.py") for i, text in enumerate(texts)])
    with Reader(str(url)) as reader:
        assert len(reader.manifest.shards_of("train")) >= 10
    return url


def copied(source: Path, target: Path) -> Path:
    """A copy whose files may be damaged."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def damage(url: Path, shard: Shard, row: int, kind: str = "npy") -> None:
    """Flip the lowest bit of the last byte of a member."""
    with Reader(str(url), on_fault=lambda error: None) as reader:
        place = reader.index(shard)[row][kind]
    at = int(place["start"]) + int(place["bytes"]) - 1
    path = url / shard.name
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def quarantine(folder: Path, *, skip: bool = True, documents: int = 100, **policy: Any) -> Quarantine:
    chosen = Policy(on_fault="skip" if skip else "fail", **{"max_share": 1.0, **policy})
    return Quarantine(folder / "quarantine", policy=chosen, documents=documents, who="rank-00000")


def fault(shard: Shard, row: int) -> ShardIntegrityError:
    return ShardIntegrityError(f"row {row} is damaged", shard=shard.name, key=f"key{row}", offset=512 * row)


def a_shard() -> Shard:
    sizes = dict.fromkeys(("bytes", "samples", "tokens", "index_bytes"), 9)
    return Shard(name="train-000000.tar", split="train", source="code", sha256="", index_sha256="", **sizes)


def test_by_default_the_first_damaged_sample_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ShardIntegrityError, match="row 3 is damaged"):
        quarantine(tmp_path, skip=False).drop(fault(a_shard(), 3), a_shard(), 3)
    assert table(tmp_path / "quarantine") == []


def test_a_dropped_sample_is_a_row_that_names_it(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    one = quarantine(tmp_path)
    one.tell = told.append
    one.drop(fault(a_shard(), 3), a_shard(), 3)
    [row] = table(tmp_path / "quarantine")
    assert {key: row[key] for key in row if key != "time"} == {
        "kind": "sample",
        "shard": "train-000000.tar",
        "row": 3,
        "key": "key3",
        "offset": 1536,
        "source": "code",
        "reason": "row 3 is damaged",
        "who": "rank-00000",
    }
    assert told == [row]


def test_the_same_sample_in_a_later_epoch_is_no_new_drop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[dict[str, Any]] = []
    one = quarantine(tmp_path, max_documents=1)
    one.tell = told.append
    for _ in range(3):
        one.drop(fault(a_shard(), 3), a_shard(), 3)
    after_a_restart = quarantine(tmp_path, max_documents=1)
    after_a_restart.drop(fault(a_shard(), 3), a_shard(), 3)
    assert len(table(tmp_path / "quarantine")) == len(told) == len(caplog.records) == 1


def test_one_sample_more_than_the_budget_ends_the_job_and_says_what_to_do(tmp_path: Path) -> None:
    one = quarantine(tmp_path, max_documents=2)
    for row in range(2):
        one.drop(fault(a_shard(), row), a_shard(), row)
    with pytest.raises(ShardIntegrityError) as raised:
        one.drop(fault(a_shard(), 2), a_shard(), 2)
    assert "3 of 100 documents (3.000%)" in str(raised.value)
    assert "max_documents=2" in str(raised.value)
    assert "stanchion rebuild" in str(raised.value)
    assert (raised.value.shard, raised.value.key, raised.value.offset) == ("train-000000.tar", "key2", 1024)


def test_a_spent_budget_stays_spent_after_a_restart(tmp_path: Path) -> None:
    generous = quarantine(tmp_path, max_documents=2)
    for row in range(2):
        generous.drop(fault(a_shard(), row), a_shard(), row)
    with pytest.raises(ShardIntegrityError, match="2 of 100"):
        quarantine(tmp_path, max_documents=1).drop(fault(a_shard(), 0), a_shard(), 0)


def test_both_limits_hold(tmp_path: Path) -> None:
    with pytest.raises(ShardIntegrityError, match=r"max_share=1\.000%"):
        quarantine(tmp_path, documents=99, max_share=0.01).drop(fault(a_shard(), 0), a_shard(), 0)
    quarantine(tmp_path, documents=100, max_share=0.01).drop(fault(a_shard(), 0), a_shard(), 0)


def test_a_mended_index_is_a_row_and_costs_no_budget(tmp_path: Path, ten: Path) -> None:
    url = copied(ten, tmp_path / "shards")
    with Reader(str(ten)) as reader:
        shard = reader.manifest.shards_of("train")[0]
        expected = reader.tokens(shard, 0)
    path = url / shard.index_name
    path.write_bytes(path.read_bytes()[:-1])
    one = quarantine(tmp_path, max_documents=0)
    with Reader(str(url), on_fault=one.mended) as reader:
        np.testing.assert_array_equal(reader.tokens(shard, 0), expected)
    [row] = table(tmp_path / "quarantine")
    assert (row["kind"], row["shard"]) == ("index", shard.name)


PROCESS = """
import sys
from pathlib import Path
from components.data.manifest import Shard
from components.data.packing import Config as Packing
from components.data.mending.quarantine import Policy, Quarantine
from components.errors import ShardIntegrityError

folder, who, first, last, limit = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
policy = Policy(on_fault="skip", max_documents=limit, max_share=1.0)
quarantine = Quarantine(folder, policy=policy, documents=1000, who=who)
name = "train-000000.tar"
zeros = dict.fromkeys(("bytes", "samples", "tokens", "index_bytes"), 0)
shard = Shard(name=name, split="train", sha256="", index_sha256="", **zeros)
print("ready", flush=True)
sys.stdin.readline()
for row in range(first, last):
    quarantine.drop(ShardIntegrityError("damaged", shard=shard.name), shard, row)
"""


def together(folder: Path, ranges: list[tuple[int, int]], limit: int, who: str = "") -> list[tuple[int, str]]:
    """Exit code and last words of processes that start dropping at the same moment."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(folder), who or f"rank-{n}", *map(str, span), str(limit)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for n, span in enumerate(ranges)
    ]  # fmt: skip
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    ended = [(one, one.communicate(timeout=60)[1]) for one in running]
    return [(one.returncode, said) for one, said in ended]


def test_the_budget_is_one_for_all_processes(tmp_path: Path) -> None:
    ended = together(tmp_path / "q", [(0, 20), (20, 40)], limit=30)
    assert any(code for code, _ in ended), "40 drops went through a budget of 30"
    assert all("documents" in said and "max_documents=30" in said for code, said in ended if code)
    assert 31 <= len(table(tmp_path / "q")) <= 32
    ended = together(tmp_path / "r", [(0, 20), (20, 40)], limit=40)
    assert [code for code, _ in ended] == [0, 0], ended
    assert len(table(tmp_path / "r")) == 40


def test_lines_of_processes_that_share_a_file_never_mix(tmp_path: Path) -> None:
    ended = together(tmp_path / "q", [(0, 60), (60, 120)], limit=120, who="workers")
    assert [code for code, _ in ended] == [0, 0], ended
    [path] = (tmp_path / "q").iterdir()
    rows = [json.loads(line)["row"] for line in path.read_text().splitlines()]
    assert sorted(rows) == list(range(120))


def test_the_same_sample_met_by_two_processes_counts_once(tmp_path: Path) -> None:
    ended = together(tmp_path / "q", [(0, 20), (0, 20)], limit=20)
    assert [code for code, _ in ended] == [0, 0], ended
    assert [row["row"] for row in table(tmp_path / "q")] == list(range(20))


def test_a_line_that_was_cut_by_a_kill_is_no_row(tmp_path: Path) -> None:
    one = quarantine(tmp_path)
    one.drop(fault(a_shard(), 0), a_shard(), 0)
    with (tmp_path / "quarantine" / "rank-00001.jsonl").open("w") as file:
        file.write('{"shard": "train-0000')
    one.drop(fault(a_shard(), 1), a_shard(), 1)
    assert [row["row"] for row in table(tmp_path / "quarantine")] == [0, 1]


def test_a_loader_worker_may_hold_it(tmp_path: Path) -> None:
    one = quarantine(tmp_path)
    one.tell = lambda row: None
    pickle.loads(pickle.dumps(one)).drop(fault(a_shard(), 0), a_shard(), 0)
    assert len(table(tmp_path / "quarantine")) == 1


@pytest.mark.parametrize("kind", ["concatenate", "whole_documents"])
def test_a_drop_is_a_hole_and_its_neighbours_keep_their_places(tmp_path: Path, ten: Path, kind: str) -> None:
    url = copied(ten, tmp_path / "shards")
    with Reader(str(ten)) as whole, Reader(str(url)) as reader:
        shard = whole.manifest.shards_of("train")[2]
        damage(url, shard, 3)
        packing = Packing.model_validate({"kind": kind})
        setting: Any = {"sequence_length": LENGTH, "batch_size": BATCH, "seed": 5, "packing": packing}
        before = TokenStream(whole, "train", **setting)
        after = TokenStream(reader, "train", **setting, drop=quarantine(tmp_path, documents=100).drop)
        holes = 0
        for step in range(-(-before.num_sequences // BATCH)):
            old, new = before.batch(step), after.batch(step)
            for row in range(BATCH):
                origin = before.origin(step, row)
                lost = np.zeros(LENGTH + 1, dtype=bool)
                slot = 0
                for piece in origin.pieces:
                    stop = slot + len(piece)
                    lost[slot:stop] = (origin.shard.name, piece.row) == (shard.name, 3)
                    slot = stop
                holes += int(lost.any())
                kept = ~lost[:-1]
                np.testing.assert_array_equal(new.inputs[row][kept], old.inputs[row][kept])
                np.testing.assert_array_equal(new.documents[row][kept], old.documents[row][kept])
                assert (new.documents[row][~kept] == PADDING).all()
                counted = kept & ~lost[1:]
                np.testing.assert_array_equal(new.targets[row][counted], old.targets[row][counted])
                assert (new.targets[row][~counted] == IGNORED).all()
        assert holes > 0
    [row] = table(tmp_path / "quarantine")
    assert (row["shard"], row["row"]) == (shard.name, 3)


def test_one_of_ten_shards_corrupt_fails_within_a_second_by_default(tmp_path: Path, ten: Path) -> None:
    url = copied(ten, tmp_path / "shards")
    with Reader(str(url)) as reader:
        shard = reader.manifest.shards_of("train")[4]
        for row in range(shard.samples):
            damage(url, shard, row, kind="txt")
        started = time.monotonic()
        stream = SampleStream(reader, "train", seed=1, drop=quarantine(tmp_path, skip=False).drop)
        with pytest.raises(ShardIntegrityError, match=shard.name):
            list(stream.read(0, len(stream)))
        assert time.monotonic() - started < 1.0


def test_within_a_sufficient_budget_the_report_is_exact(tmp_path: Path, ten: Path) -> None:
    url = copied(ten, tmp_path / "shards")
    with Reader(str(url)) as reader:
        shard = reader.manifest.shards_of("train")[4]
        for row in range(shard.samples):
            damage(url, shard, row, kind="txt")
        drop = quarantine(tmp_path, max_documents=shard.samples, documents=100).drop
        stream = SampleStream(reader, "train", seed=1, drop=drop)
        read = list(stream.read(0, 2 * len(stream)))
        assert len(read) == 2 * (len(stream) - shard.samples)
        rows = table(tmp_path / "quarantine")
        assert [(row["shard"], row["row"]) for row in rows] == [(shard.name, n) for n in range(shard.samples)]
        assert [row["key"] for row in rows] == [reader.key(shard, n) for n in range(shard.samples)]
        assert [row["offset"] for row in rows] == reader.index(shard)["txt"]["start"].tolist()
