"""Faults that were seen in other loaders, and why each cannot happen here.

`FAULTS` is the table: what happens elsewhere, what stands against it here, and the tests that say so. The
numbers are those of the survey it comes from (webdataset 1.0.2 and s3fs unless another loader is named).
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from case_studies.proofs import _data
from components import storage
from components.data.integrity import faults_of
from components.data.loader import Loader
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.stream import TokenStream
from components.errors import ShardIntegrityError, StanchionError

ROOT = Path(__file__).parent.parent


class Fault(NamedTuple):
    """One row of the table."""

    number: str
    elsewhere: str
    here: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "1",
        "no resume but reading everything again",
        "the place of a batch is arithmetic",
        (
            "test_going_on_at_90_percent_reads_the_samples_of_that_batch_alone",
            "test_a_killed_job_goes_on_with_other_ranks_as_if_nothing_had_been",
        ),
    ),
    Fault(
        "2",
        "a tar cut between members is a shorter shard",
        "its length and digest are in the manifest",
        ("test_a_shard_of_another_length_is_named_by_whoever_reads_it",),
    ),
    Fault(
        "3",
        "a flipped bit in a header ends the shard",
        "headers are not read to find a sample, and are compared whole by `check`",
        ("test_a_flipped_header_bit_hides_no_sample",),
    ),
    Fault(
        "4",
        "a flipped bit in a payload is delivered",
        "each member has a checksum in the index",
        ("test_a_flipped_bit_is_named_with_shard_key_and_offset",),
    ),
    Fault(
        "5",
        "a cut .tar.gz is a shorter shard",
        "shards are not compressed; anything else is no shard",
        ("test_a_hostile_tar_is_refused_even_with_right_digests",),
    ),
    Fault(
        "6",
        "going on after errors drops the rest of a shard, or everything, with exit code 0",
        "a drop is one sample, counted against a budget that ends the job",
        (
            "test_one_sample_more_than_the_budget_ends_the_job_and_says_what_to_do",
            "test_a_drop_is_a_hole_and_its_neighbours_keep_their_places",
        ),
    ),
    Fault(
        "7",
        "half a sample of one shard is joined with half a sample of the next",
        "members are found by the index of their own shard",
        ("test_no_sample_is_made_of_two_shards",),
    ),
    Fault(
        "8",
        "the same order of shards every epoch",
        "the epoch is part of the order",
        ("test_each_epoch_seed_and_data_set_has_an_order_of_its_own",),
    ),
    Fault(
        "9",
        "a seed that differs between processes, or is a string",
        "the order follows from seed, epoch and manifest alone",
        ("test_every_process_draws_the_same_order",),
    ),
    Fault(
        "10",
        "resampling that ignores its seed",
        "the same; there is no resampling",
        ("test_every_process_draws_the_same_order",),
    ),
    Fault(
        "11",
        "uneven shards leave a rank waiting at the end of an epoch",
        "ranks share batches, not shards",
        ("test_two_ranks_end_an_epoch_of_uneven_shards_together",),
    ),
    Fault(
        "12",
        "fewer shards than workers is an error, or an idle rank",
        "workers share steps, not shards",
        ("test_one_shard_serves_more_ranks_and_workers_than_it_has",),
    ),
    Fault(
        "13",
        "several nodes need another splitter, or are refused",
        "rank and world are arguments of a batch; the environment is not asked",
        ("test_the_environment_does_not_change_what_a_rank_reads",),
    ),
    Fault(
        "15",
        "a cache takes any file that looks like a tar, and leaks temporary ones",
        "copies are named by their digest, and hashed before they get the name",
        ("test_a_cut_object_that_looks_like_a_tar_is_not_cached",),
    ),
    Fault(
        "16",
        "`pipe:` in a name runs a shell",
        "names are plain file names, protocols are on a list",
        (
            "test_a_manifest_names_no_shard_outside_of_its_folder",
            "test_a_data_set_is_opened_by_no_url_that_runs_something",
        ),
    ),
    Fault(
        "17",
        "members named .pkl, .pyd or .pth are unpickled",
        "a member is one of three kinds, and nothing is unpickled",
        ("test_a_hostile_tar_is_refused_even_with_right_digests", "test_no_array_is_opened_but_token_ids"),
    ),
    Fault(
        "18",
        "no s3://, so people pipe through a command",
        "s3:// as any other URL, with retries",
        ("test_an_object_store_gets_the_same_data_set", "test_a_storm_passes_within_the_budget"),
    ),
    Fault(
        "19",
        "a command that fails late looks like the end of a shard",
        "no commands; a short answer is an error",
        ("test_a_short_answer_is_never_taken_for_the_whole",),
    ),
    Fault(
        "21",
        "keys with dots merge, members apart make partial samples, files without a suffix vanish",
        "the writer makes none, `check` and the reader refuse them",
        (
            "test_the_writer_makes_no_member_that_its_reader_refuses",
            "test_a_hostile_tar_is_refused_even_with_right_digests",
        ),
    ),
    Fault(
        "22",
        "a writer that fails leaves a valid, shorter shard",
        "the manifest is last",
        ("test_a_killed_writer_leaves_nothing_or_all_and_is_continued",),
    ),
    Fault(
        "23",
        "equal samples give other bytes each time",
        "names, times and owners are fixed",
        ("test_two_writes_are_equal_byte_by_byte",),
    ),
    Fault(
        "24",
        "an exception while uploading publishes half an object",
        "an object is put whole, or its upload is aborted",
        (
            "test_an_upload_that_fails_leaves_no_object_and_no_parts",
            "test_a_writer_that_is_killed_leaves_no_object",
        ),
    ),
    Fault(
        "25",
        "a client that was made before a fork hangs",
        "clients belong to the process that made them",
        ("test_a_forked_child_reads_after_its_parent_has",),
    ),
    Fault(
        "mosaicml-streaming: /dev/shm",
        "what a crashed job left in shared memory stops the next one",
        "nothing is kept outside of the process",
        ("test_a_killed_job_leaves_nothing_that_stops_the_next",),
    ),
    Fault(
        "mosaicml-streaming: batch shape",
        "the count of samples is inferred from a batch's shape, and a resume starts at 0",
        "the stream counts what it hands out",
        ("test_a_position_is_counted_and_never_inferred",),
    ),
    Fault(
        "mosaicml-streaming, torchdata: epochs",
        "a hang between epochs, a resume in the second epoch, an epoch left out",
        "epochs are one endless sequence",
        ("test_a_batch_across_the_end_of_an_epoch_is_whole", "test_an_epoch_holds_every_item_once"),
    ),
    Fault(
        "litdata: several nodes",
        "no resume with another number of nodes",
        "ranks are no part of the position",
        ("test_a_killed_job_goes_on_with_other_ranks_as_if_nothing_had_been",),
    ),
    Fault(
        "torchdata: snapshots",
        "keeping the state at every step slows a step from 10 ms to 2 s",
        "the state is one integer, and no worker is asked for it",
        ("test_keeping_the_position_at_every_step_reads_nothing",),
    ),
    Fault(
        "Megatron-Energon: state",
        "state that is saved and never restored",
        "the place in the data is taken from the checkpoint, and another order is refused",
        ("test_another_order_is_not_gone_on_with", "test_going_on_in_another_order_is_refused"),
    ),
)
NOT_IN_THE_SURVEY = {14, 20}


def test_every_fault_has_a_test_that_exists() -> None:
    text = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE))
    assert {test for fault in FAULTS for test in fault.tests} - known == set()
    assert all(fault.tests for fault in FAULTS)
    numbers = {int(fault.number) for fault in FAULTS if fault.number.isdigit()}
    assert numbers == set(range(1, 26)) - NOT_IN_THE_SURVEY


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _data.make(tmp_path_factory.mktemp("data") / "uneven", _data.UNEVEN)


def opened(reader: Reader, batch_size: int = 4) -> TokenStream:
    return TokenStream(reader, "train", sequence_length=16, batch_size=batch_size, seed=0)


def run(
    script: str, *arguments: object, stdout: IO[str] | int = subprocess.PIPE, **environment: str
) -> subprocess.Popen[str]:
    """A process of its own, under this checkout."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=stdout,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
    )


def test_a_flipped_header_bit_hides_no_sample(tmp_path: Path) -> None:
    data = _data.make(tmp_path / "data", _data.UNEVEN)
    with Reader(str(data)) as reader:
        stream = SampleStream(reader, "train")
        whole = list(stream.read(0, len(stream)))
        shard = reader.manifest.shards[2]
        place = int(reader.index(shard)[4]["offset"])
    content = bytearray((data / shard.name).read_bytes())
    content[place + 3] ^= 1
    (data / shard.name).write_bytes(content)
    with Reader(str(data)) as reader:
        assert list(SampleStream(reader, "train").read(0, len(whole))) == whole
    [fault] = faults_of(str(data))
    assert (fault.shard, fault.offset) == (shard.name, place)


def test_no_sample_is_made_of_two_shards(tmp_path: Path) -> None:
    """The first shard ends in the middle of its last sample; the next begins with what would complete one."""
    data = _data.make(tmp_path / "data", _data.UNEVEN)
    with Reader(str(data)) as reader:
        first, _, third = reader.manifest.shards_of("train")
        row = reader.index(first)[-1]
        begin, cut = int(row["offset"]), int(row["txt"]["start"]) - 512
    (data / first.name).write_bytes((data / first.name).read_bytes()[:cut])
    tail = (data / third.name).read_bytes()
    (data / third.name).write_bytes(tail[int(row["npy"]["start"] - begin) :])
    with Reader(str(data), on_fault=lambda fault: None) as reader:
        assert len(reader.content(first, len(reader.index(first)) - 1, "json"))
        with pytest.raises(ShardIntegrityError, match="early"):
            reader.sample(first, len(reader.index(first)) - 1)
        with pytest.raises(ShardIntegrityError, match=third.name):
            reader.sample(third, 0)
    assert {fault.shard for fault in faults_of(str(data))} == {first.name, third.name}


def test_a_cut_object_that_looks_like_a_tar_is_not_cached(folder: Path, tmp_path: Path, monkeypatch) -> None:
    """Cut between two samples it is a tar to every tool; no copy of it is kept, whole or partial."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = storage.publish_folder(folder, f"memory://{tmp_path.name}/cut", last="manifest.json")
    with Reader(url) as reader:
        shard = reader.manifest.shards[2]
        reader.sample(reader.manifest.shards[0], 0)
        cut = int(reader.index(shard)["offset"][4])
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    content = (folder / shard.name).read_bytes()[:cut]
    storage.write_bytes(storage.join(url, shard.name), content)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert len(archive.getmembers()) == 12
    with Reader(url) as reader, pytest.raises(StanchionError):
        reader.sample(shard, 0)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.stat().st_size] == kept


ORDER = """
import sys
from components.data.reader import Reader
from components.data.stream import TokenStream
with Reader(sys.argv[1]) as reader:
    stream = TokenStream(reader, "train", sequence_length=16, batch_size=4, seed=0)
    print([(o.shard.name, o.sequence) for s in range(9) for r in range(4) for o in [stream.origin(s, r)]])
"""


def test_every_process_draws_the_same_order(folder: Path) -> None:
    ways = ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "WDS_SEED": "5", "RANK": "1"})
    processes = [run(ORDER, folder, **way) for way in ways]
    one, two = (process.communicate(timeout=60)[0] for process in processes)
    assert one == two != ""


def test_the_environment_does_not_change_what_a_rank_reads(folder: Path, monkeypatch) -> None:
    with Reader(str(folder)) as reader:
        before = opened(reader).batch(3, 1, 2).inputs.tolist()
        monkeypatch.setenv("WORLD_SIZE", "7")
        monkeypatch.setenv("RANK", "3")
        assert opened(reader).batch(3, 1, 2).inputs.tolist() == before


RANK = """
import json, sys, time
import torch
import torch.distributed as dist
from datetime import timedelta
from components.data.loader import Loader
from components.data.reader import Reader
from components.data.stream import TokenStream
folder, meeting, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2,
                        timeout=timedelta(seconds=20))
with Reader(folder) as reader:
    stream = TokenStream(reader, "train", sequence_length=16, batch_size=4, seed=0)
    started, rows, steps = time.monotonic(), 0, -(-stream.num_sequences // 4)
    with Loader(stream, rank=rank, world_size=2) as loader:
        for _ in range(steps):
            batch = next(loader)
            total = torch.tensor([len(batch.inputs)])
            dist.all_reduce(total)
            assert total.item() == 4
            rows += len(batch.inputs)
    dist.barrier()
    print(json.dumps({"rows": rows, "steps": steps, "seconds": time.monotonic() - started}))
dist.destroy_process_group()
"""


def test_two_ranks_end_an_epoch_of_uneven_shards_together(folder: Path, tmp_path: Path) -> None:
    """Shards of 5, 1 and 9 documents over real gloo ranks: each step needs both, and none is left waiting."""
    ranks = [run(RANK, folder, tmp_path / "meeting", rank) for rank in range(2)]
    try:
        told = [json.loads(process.communicate(timeout=60)[0]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0]
    assert told[0]["rows"] == told[1]["rows"] == 2 * told[0]["steps"]
    assert max(one["seconds"] for one in told) <= 5


def test_one_shard_serves_more_ranks_and_workers_than_it_has(tmp_path: Path) -> None:
    parts = (_data.Part("train", (9,)), _data.Part("held_out", (1,)))
    data = _data.make(tmp_path / "data", parts)
    with Reader(str(data)) as reader:
        expected = opened(reader, 8).batch(0).inputs.tolist()
        found = []
        for rank in range(8):
            with Loader(opened(reader, 8), rank=rank, world_size=8, workers=2 if rank == 5 else 0) as loader:
                found += next(loader).inputs.tolist()
        assert found == expected


KILLED = """
import os, signal, sys
from components.data.loader import Loader
from components.data.reader import Reader
from components.data.stream import TokenStream
reader = Reader(sys.argv[1])
stream = TokenStream(reader, "train", sequence_length=16, batch_size=4, seed=0)
loader = Loader(stream, workers=2)
print([next(loader).inputs.tolist() for _ in range(3)], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_job_leaves_nothing_that_stops_the_next(folder: Path, tmp_path: Path) -> None:
    """Its workers, which outlive it by seconds, do not stop the next either."""
    with Reader(str(folder)) as reader:
        expected = [opened(reader).batch(step).inputs.tolist() for step in range(3)]
    for turn in range(2):
        told = tmp_path / f"told-{turn}"
        with told.open("w") as file:
            process = run(KILLED, folder, stdout=file)
            assert process.wait(timeout=60) == -signal.SIGKILL
        assert told.read_text() == f"{expected}\n"


def test_keeping_the_position_at_every_step_reads_nothing(folder: Path, monkeypatch) -> None:
    with Reader(str(folder)) as reader:
        stream = opened(reader)
        monkeypatch.setattr(Reader, "content", None)
        started = time.perf_counter()
        for step in range(1000):
            assert stream.position(step).step == step
        assert time.perf_counter() - started < 1
