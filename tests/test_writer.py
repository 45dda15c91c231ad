"""Shards are the same bytes whoever writes them, however often interrupted, and they appear all at once."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from case_studies.proofs import killed_writer
from components import storage
from components.data import manifest, shards, stream, tokenizer
from components.data.card import card
from components.data.curation.checked import Checked, SetAside
from components.data.document import Document, document_of
from components.data.integrity import check_dataset
from components.data.sources import directory
from components.data.writing import dataset, leftovers, pool, publish, uploads, vocabulary, writer
from components.data.writing.layout import layout
from components.data.writing.plan import Plan, held
from components.errors import DataError

SHARDS = shards.Config(documents_per_shard=8, held_out_share=0.25)
SOURCE = directory.Config(path="/corpus")


def document(number: int) -> Document:
    line = f"def function_{number}(x):\n    return x + {number}  # {number * number * 7919}\n"
    made = document_of(line.encode() * (number % 7 + 1), f"{number}.py")
    return replace(made, source="code" if number % 3 else "prose")


KEPT = [document(number) for number in range(90)]
LEFT_OUT = [
    SetAside("b" * 16, "b.py", "code", "b" * 64, "near_duplicate", of=KEPT[0].key),
    SetAside("a" * 16, "a.py", "prose", "a" * 64, "too_short"),
]
LEARNT = vocabulary.learn(KEPT, tokenizer.Config(vocab_size=300), SHARDS)


def checked(kept: list[Document] = KEPT) -> Checked:
    return Checked(kept, LEFT_OUT, {"success": True, "totals": []}, digest="0" * 64, characters=9)


def make(
    folder: Path,
    kept: list[Document] = KEPT,
    *,
    url: str | None = None,
    config: shards.Config = SHARDS,
    workers: int | None = None,
) -> str:
    place = url or str(folder / "run" / "shards")
    dataset.make_dataset(
        checked(kept),
        LEARNT,
        place,
        source=SOURCE,
        config=config,
        scratch=folder / "scratch",
        write=partial(pool.write, workers=workers),
    )
    return place


def plan_in(folder: Path, kept: list[Document] = KEPT) -> Plan:
    return dataset.prepare(checked(kept), LEARNT, folder / "scratch" / "data_set", SHARDS)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set as one process writes it; tests that change it take a copy."""
    return Path(make(tmp_path_factory.mktemp("writer"), workers=1))


# Layout


def test_a_shard_has_one_split_and_one_source_and_no_document_is_lost() -> None:
    parts = layout(KEPT, SHARDS)
    for part in parts:
        documents = [KEPT[number] for number in part.numbers]
        found = {(shards.split_of(one, SHARDS), one.source) for one in documents}
        assert found == {(part.split, part.source)}
        assert 1 <= len(documents) <= SHARDS.documents_per_shard
    assert sorted(number for part in parts for number in part.numbers) == list(range(len(KEPT)))


def test_shards_are_numbered_through_the_sources_of_a_split() -> None:
    for split in manifest.SPLITS:
        parts = [part for part in layout(KEPT, SHARDS) if part.split == split]
        assert [part.name for part in parts] == [f"{split}-{i:06d}.tar" for i in range(len(parts))]
        assert list(dict.fromkeys(part.source for part in parts)) == ["prose", "code"]


def test_a_split_without_documents_is_an_error() -> None:
    with pytest.raises(DataError, match="held_out_share"):
        layout(KEPT[:1], SHARDS)


# Vocabulary


def test_the_tokenizer_never_sees_held_out_text() -> None:
    texts = {one.text for one in KEPT if shards.split_of(one, SHARDS) == "held_out"}
    seen = list(vocabulary.sample(KEPT, SHARDS, 10**9))
    assert len(seen) + len(texts) == len(KEPT)
    assert not texts & set(seen)


def test_a_large_corpus_is_sampled_by_content() -> None:
    kept = [document_of(f"text {i}".encode() * 9, "") for i in range(3000)]
    total = sum(map(len, vocabulary.sample(kept, SHARDS, 10**9)))
    some = list(vocabulary.sample(kept, SHARDS, total // 4))
    assert sum(map(len, some)) == pytest.approx(total / 4, rel=0.1)
    assert set(some) == set(vocabulary.sample(kept[::-1], SHARDS, total // 4))


# The data set


def test_what_was_left_out_and_expected_lies_in_the_data_set(undisturbed: Path) -> None:
    listed = check_dataset(str(undisturbed))
    assert {"set_aside.jsonl", "expectations.json", *tokenizer.FILES} == set(listed.files)
    rows = [json.loads(line) for line in (undisturbed / "set_aside.jsonl").read_text().splitlines()]
    assert [SetAside(**row) for row in rows] == LEFT_OUT
    assert json.loads((undisturbed / "expectations.json").read_text())["success"] is True


def test_the_manifest_says_how_its_source_is_read_again(undisturbed: Path) -> None:
    source = manifest.read(str(undisturbed)).source
    assert source.kind == "directory"
    assert directory.Config.model_validate(source.settings) == SOURCE


def test_the_manifest_and_the_card_have_the_size_of_each_part_of_a_mixture(undisturbed: Path) -> None:
    listed = manifest.read(str(undisturbed))
    for split, whole in listed.splits.items():
        parts = listed.sources[split]
        assert list(parts) == ["code", "prose"]
        assert sum(part.documents for part in parts.values()) == whole.documents
        assert sum(part.tokens for part in parts.values()) == whole.tokens
    assert "| train | prose |" in card(listed, "here")


def test_a_document_keeps_its_source_in_the_shard(undisturbed: Path) -> None:
    known = {one.sha256: one for one in KEPT}
    read = [one for split in manifest.SPLITS for one in stream.documents(str(undisturbed), split)]
    assert {one.sha256: one for one in read} == known


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_processes_writes_the_same_bytes(
    undisturbed: Path, tmp_path: Path, workers: int
) -> None:
    written = Path(make(tmp_path, workers=workers))
    assert storage.listing(str(written)) == storage.listing(str(undisturbed))
    for name in storage.listing(str(written)):
        assert (written / name).read_bytes() == (undisturbed / name).read_bytes(), name


# Interruption


def test_shards_that_are_whole_are_not_written_again(undisturbed: Path, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    for part in plan.parts[::2]:
        assert writer.write_part(plan, part).anew
    again: list[writer.Written] = []
    pool.write(plan_in(tmp_path), again.append, workers=1)
    assert [one.anew for one in again] == [number % 2 == 1 for number in range(len(plan.parts))]
    assert manifest.digest(make(tmp_path)) == manifest.digest(str(undisturbed))


def test_a_shard_of_other_documents_is_written_anew(
    undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = [replace(one, path=f"other/{one.path}") for one in KEPT]
    pool.write(plan_in(tmp_path, others), lambda written: None, workers=1)
    assert manifest.digest(make(tmp_path)) == manifest.digest(str(undisturbed))
    assert "train-000000.tar of an earlier run was made from something else" in caplog.text


@pytest.mark.parametrize("suffix", [".tar", ".index.npy"])
def test_a_shard_that_was_cut_is_written_anew(undisturbed: Path, tmp_path: Path, suffix: str) -> None:
    plan = plan_in(tmp_path)
    pool.write(plan, lambda written: None, workers=1)
    os.truncate(plan.files / f"train-000001{suffix}", 100)
    (plan.files / f"train-000002{suffix}").unlink()
    assert manifest.digest(make(tmp_path)) == manifest.digest(str(undisturbed))


@pytest.mark.parametrize("content", [b"", b'{"inputs": "', b"{}"])
def test_a_receipt_that_a_power_cut_spoilt_is_not_believed(
    undisturbed: Path, tmp_path: Path, content: bytes
) -> None:
    plan = plan_in(tmp_path)
    pool.write(plan, lambda written: None, workers=1)
    plan.receipt("train-000001.tar").write_bytes(content)
    plan.counts("train-000002.tar").write_bytes(content)
    assert manifest.digest(make(tmp_path)) == manifest.digest(str(undisturbed))


def test_what_a_crash_left_is_swept_and_never_published(tmp_path: Path) -> None:
    folder = tmp_path / "scratch" / "data_set"
    receipt = "receipts/train-000077.tar.receipt.json"
    for name in ("files/train-000077.tar", receipt, "partial/9/train-000000.tar"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")
    check_dataset(make(tmp_path))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_shard_publishes_nothing_and_ends_every_process(tmp_path: Path, workers: int) -> None:
    broken = [*KEPT, Document("c" * 16, "a half \ud800 of a character", "c.py", "c" * 64, source="code")]
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises((UnicodeEncodeError, TypeError)):
        make(tmp_path, broken, workers=workers)
    assert set(psutil.Process().children(recursive=True)) <= before
    assert not (tmp_path / "run" / "shards").exists()
    check_dataset(make(tmp_path))


def test_a_killed_worker_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    worker = pool.Worker(plan)
    try:
        assert worker.ask(plan.parts[0]).anew
        worker.kill()
        with pytest.raises(DataError, match=r"train-000001\.tar ended with exit code -9"):
            worker.ask(plan.parts[1])
    finally:
        worker.close()


def test_two_runs_do_not_write_in_one_folder(tmp_path: Path) -> None:
    with held(tmp_path / "scratch" / "data_set"), pytest.raises(DataError, match="edition"):
        make(tmp_path)
    check_dataset(make(tmp_path))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    killed_writer.make_corpus(folder)
    return folder


@pytest.mark.slow
def test_a_killed_writer_leaves_nothing_or_all_and_is_continued(corpus: Path, tmp_path: Path) -> None:
    found = killed_writer.kill_and_resume(corpus, str(tmp_path), seed=3, count=4)
    assert found["broken"] == []
    assert found["kills"] == 4


@pytest.mark.slow
def test_a_writer_killed_while_it_uploads_leaves_nothing_or_all(corpus: Path, s3_root: str) -> None:
    found = killed_writer.kill_and_resume(corpus, s3_root, seed=4, count=2)
    assert found["broken"] == []
    assert found["kills"] == 2


# Publishing


def test_the_same_data_set_may_be_published_twice_and_another_may_not(tmp_path: Path) -> None:
    url = make(tmp_path)
    assert make(tmp_path) == url
    with pytest.raises(DataError, match="already holds another data set"):
        make(tmp_path, config=shards.Config(documents_per_shard=5, held_out_share=0.25))
    check_dataset(url)


def test_a_folder_that_lost_its_manifest_is_published_anew(tmp_path: Path) -> None:
    url = Path(make(tmp_path))
    (url / manifest.NAME).unlink()
    check_dataset(make(tmp_path))


def test_a_place_with_files_of_someone_else_is_refused(tmp_path: Path) -> None:
    letter = tmp_path / "run" / "shards" / "letter.txt"
    letter.parent.mkdir(parents=True)
    letter.write_text("dear")
    with pytest.raises(DataError, match=r"letter\.txt"):
        make(tmp_path)
    assert letter.read_text() == "dear"


def test_orphans_beside_a_published_data_set_are_swept(undisturbed: Path, tmp_path: Path) -> None:
    url = str(shutil.copytree(undisturbed, tmp_path / "copy"))
    shutil.copy(f"{url}/train-000000.tar", f"{url}/train-000099.tar")
    assert leftovers.sweep(url) == ["train-000099.tar"]
    check_dataset(url)


def test_an_object_store_gets_the_same_data_set(undisturbed: Path, tmp_path: Path, s3_root: str) -> None:
    url = make(tmp_path, url=f"{s3_root}/shards")
    assert check_dataset(url) == manifest.read(str(undisturbed))
    assert make(tmp_path, url=url) == url
    with pytest.raises(DataError, match="already holds another data set"):
        make(tmp_path, KEPT[:80], url=url)


def test_an_upload_that_goes_on_sends_what_is_missing(
    undisturbed: Path, tmp_path: Path, s3_root: str
) -> None:
    url, ledger, entries = (
        f"{s3_root}/shards",
        tmp_path / "uploaded.jsonl",
        manifest.read(str(undisturbed)).entries(),
    )
    assert uploads.send(undisturbed, url, entries, ledger) == sorted(entries)
    storage.remove(f"{url}/train-000001.tar")
    storage.write_bytes(f"{url}/train-000002.tar", b"cut")
    with ledger.open("a") as file:
        file.write('["half a li')
    assert uploads.send(undisturbed, url, entries, ledger) == ["train-000001.tar", "train-000002.tar"]
    publish.publish(undisturbed, url, ledger)
    check_dataset(url)


def test_what_an_upload_of_something_else_left_is_swept(
    undisturbed: Path, tmp_path: Path, s3_root: str
) -> None:
    url = f"{s3_root}/shards"
    storage.write_bytes(f"{url}/train-000077.tar", b"of an upload that never ended")
    publish.publish(undisturbed, url, tmp_path / "ledger")
    check_dataset(url)
