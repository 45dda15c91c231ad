"""A data set in a bucket reads as the one on disk does, however its store behaves; damage is always named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components import storage
from components.data import manifest as manifests
from components.data import stream as streams
from components.data.integrity import check_dataset, faults_of
from components.data.loader import Loader
from components.data.manifest import Shard
from components.data.reader import Reader
from components.data.samples import SampleStream
from components.data.stream import Batch, TokenStream
from components.errors import ShardIntegrityError
from components.observability import events
from components.reliability.faulty_object_store import Faults, FaultyStore
from components.remote import retries
from components.storage import Config

STEPS = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setenv("STANCHION_STORAGE", "{}")
    monkeypatch.setattr(retries, "FIRST_WAIT_SECONDS", 0.01)
    storage.use(Config(cache=str(tmp_path / "cache"), retries=10))
    return tmp_path / "cache"


@pytest.fixture
def published(small_shards: Path, s3_root: str) -> str:
    """The small data set in a bucket."""
    url = storage.join(s3_root, "runs", "1", "shards")
    for name in storage.walk(str(small_shards)):
        storage.put_file(small_shards / name, storage.join(url, name))
    return url


def tokens(reader: Reader) -> TokenStream:
    return TokenStream(reader, "train", sequence_length=64, batch_size=4, seed=7)


def batches(url: str) -> list[Batch]:
    with Reader(url) as reader:
        return [tokens(reader).batch(step) for step in range(STEPS)]


def texts(url: str) -> list[bytes]:
    with Reader(url) as reader:
        stream = SampleStream(reader, "train", seed=3)
        return list(stream.read(0, len(stream)))


def same(ones: list[Batch], others: list[Batch]) -> bool:
    arrays = [
        (vars(one)[name], vars(other)[name])
        for one, other in zip(ones, others, strict=True)
        for name in vars(one)
    ]
    return all(np.array_equal(mine, yours) for mine, yours in arrays)


def spoil(content: bytes) -> bytes:
    """Flip one bit of every 512 bytes: whatever is read, it is damaged."""
    spoilt = np.frombuffer(content, dtype=np.uint8).copy()
    spoilt[::512] ^= 1
    return spoilt.tobytes()


def copies(cache: Path) -> list[Path]:
    return sorted(cache.glob("[0-9a-f][0-9a-f]/*"))


def test_a_bucket_gives_what_the_disk_gives(published: str, small_shards: Path) -> None:
    assert same(batches(published), batches(str(small_shards)))
    assert texts(published) == texts(str(small_shards))
    for split in ("train", "held_out"):
        local = list(streams.documents(str(small_shards), split))
        assert list(streams.documents(published, split)) == local
    fixed = [streams.fixed_batch(url, 8, 64) for url in (published, str(small_shards))]
    assert np.array_equal(*fixed)


@pytest.mark.parametrize(
    ("kind", "faults"),
    [
        ("slow", Faults(slow_share=0.5, slow_seconds=0.1)),
        ("errors", Faults(error_share=0.2, error_status=500)),
        ("short", Faults(short_share=0.2)),
        ("cut", Faults(cut_share=0.2)),
    ],
)
def test_a_store_that_misbehaves_changes_no_batch(
    kind: str, faults: Faults, published: str, faulty_s3: FaultyStore, small_shards: Path
) -> None:
    faulty_s3.faults = faults
    assert same(batches(published), batches(str(small_shards)))
    assert texts(published) == texts(str(small_shards))
    assert check_dataset(published) == check_dataset(str(small_shards))
    assert faulty_s3.counts[kind] > 0


def test_a_reader_that_lists_nothing_sees_through_an_old_list(
    s3_root: str, faulty_s3: FaultyStore, small_shards: Path
) -> None:
    url = storage.join(s3_root, "set")
    assert storage.listing(url) == []
    faulty_s3.faults = Faults(stale_lists=True)
    for name in storage.walk(str(small_shards)):
        storage.put_file(small_shards / name, storage.join(url, name))
    assert storage.listing(url) == []
    assert same(batches(url), batches(str(small_shards)))
    assert check_dataset(url).splits == manifests.read(str(small_shards)).splits
    assert faulty_s3.counts["stale"] >= 2


def test_each_shard_is_downloaded_once(published: str, faulty_s3: FaultyStore, cache: Path) -> None:
    texts(published)
    first = faulty_s3.counts["bytes"]
    shards = manifests.read(published).shards_of("train")
    assert first > sum(shard.bytes for shard in shards)
    assert {path.name for path in copies(cache)} == {shard.sha256 for shard in shards}
    faulty_s3.counts.clear()
    texts(published)
    assert faulty_s3.counts["bytes"] < first / 2, "only the manifest and the indexes come again"


def damaged(url: str) -> Shard:
    """Spoil the first train shard of a data set where it lies."""
    shard = manifests.read(url).shards_of("train")[0]
    place = storage.join(url, shard.name)
    storage.write_bytes(place, spoil(storage.read_bytes(place)))
    return shard


@pytest.mark.parametrize("read", [batches, texts], ids=["tokens", "samples"])
def test_a_shard_that_was_damaged_in_the_store_is_never_read(
    read: Callable[[str], Any], published: str, cache: Path
) -> None:
    shard = damaged(published)
    with pytest.raises(ShardIntegrityError, match="other bytes than its manifest says") as caught:
        read(published)
    assert caught.value.shard == shard.name
    assert storage.join(published, shard.name) in str(caught.value)
    assert shard.sha256 not in [path.name for path in copies(cache)]


def test_where_damage_is_skipped_the_rest_of_a_damaged_shard_is_read_from_its_store(
    published: str, small_shards: Path
) -> None:
    shard = manifests.read(published).shards_of("train")[0]
    place = storage.join(published, shard.name)
    content = bytearray(storage.read_bytes(place))
    with Reader(str(small_shards)) as whole, Reader(published, on_fault=lambda _: None) as reader:
        content[int(whole.index(shard)["txt"]["start"][1])] ^= 1
        storage.write_bytes(place, bytes(content))
        for row in range(shard.samples):
            if row != 1:
                assert reader.content(shard, row, "txt") == whole.content(shard, row, "txt")
        with pytest.raises(ShardIntegrityError) as caught:
            reader.content(shard, 1, "txt")
        assert caught.value.key == whole.key(shard, 1)


def test_a_shard_that_is_missing_from_the_store_is_named(published: str) -> None:
    shard = manifests.read(published).shards_of("train")[0]
    storage.remove(storage.join(published, shard.name))
    with pytest.raises(ShardIntegrityError, match=f"{shard.name} is missing from {published}"):
        texts(published)


@pytest.mark.parametrize("read", [batches, texts], ids=["tokens", "samples"])
def test_a_copy_that_was_damaged_in_the_cache_is_fetched_anew(
    read: Callable[[str], Any], published: str, small_shards: Path, cache: Path
) -> None:
    read(published)
    for copy in copies(cache):
        copy.write_bytes(spoil(copy.read_bytes()))
    found, expected = read(published), read(str(small_shards))
    assert same(found, expected) if read is batches else found == expected
    for copy in copies(cache):
        assert storage.sha256_of_file(copy) == copy.name


def test_a_copy_is_fetched_anew_once_and_then_the_shard_is_at_fault(published: str, cache: Path) -> None:
    texts(published)
    shard = damaged(published)
    [copy] = [path for path in copies(cache) if path.name == shard.sha256]
    copy.write_bytes(spoil(copy.read_bytes()))
    with pytest.raises(ShardIntegrityError, match="other bytes than its manifest says") as caught:
        texts(published)
    assert caught.value.shard == shard.name


def test_a_copy_that_keeps_rotting_is_not_fetched_for_ever(
    published: str, cache: Path, faulty_s3: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Reader(published) as reader:
        shard = reader.manifest.shards_of("train")[0]
        opened = reader._open

        def rotten(shard: Shard) -> int:
            descriptor = opened(shard)
            for copy in copies(cache):
                copy.write_bytes(spoil(copy.read_bytes()))
            return descriptor

        monkeypatch.setattr(reader, "_open", rotten)
        before = faulty_s3.counts["GET"]
        for _ in range(3):
            with pytest.raises(ShardIntegrityError, match="has checksum") as caught:
                reader.content(shard, 0, "txt")
        assert caught.value.shard == shard.name
        assert faulty_s3.counts["GET"] - before <= 3, "an index and the shard twice"


def test_every_fault_in_a_bucket_is_listed(published: str) -> None:
    assert faults_of(published) == []
    shard = damaged(published)
    gone = manifests.read(published).shards_of("held_out")[0]
    storage.remove(storage.join(published, gone.name))
    storage.write_bytes(storage.join(published, "stray"), b"x")
    found = faults_of(published)
    assert [fault.shard for fault in found] == ["stray", shard.name, gone.name]
    assert found[1].key
    assert "is missing from" in str(found[2])


def test_loader_workers_read_a_bucket_after_their_parent_has(
    published: str, small_shards: Path, cache: Path
) -> None:
    with Reader(published) as reader:
        reader.tokens(reader.manifest.shards_of("train")[0], 0)
        with Loader(tokens(reader), workers=2, start_method="fork") as loader:
            found = list(islice(loader, STEPS))
    assert same(found, batches(str(small_shards)))
    assert all(storage.sha256_of_file(path) == path.name for path in copies(cache))


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in events.read(folder / "job" / "events", "step", rank=0)]


@pytest.mark.slow
def test_two_ranks_train_on_a_bucket_as_one_does_on_a_disk(
    published: str,
    faulty_s3: FaultyStore,
    small_job: Callable[..., Any],
    small_checkpoints: Path,
    tmp_path: Path,
) -> None:
    faulty_s3.faults = Faults(error_share=0.05, error_status=500, slow_share=0.1, slow_seconds=0.05)
    done = small_job(tmp_path, shards=published, processes=2, loader_workers=1)
    assert done.returncode == 0, done.stderr
    assert faulty_s3.counts["bytes"] > 0
    expected = losses(small_checkpoints.parent)
    assert len(expected) == 4
    assert losses(tmp_path) == pytest.approx(expected, rel=1e-4)
