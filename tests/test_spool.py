"""Kept documents go to disk and come back the same, and half a spool is never taken for the whole."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from components.data.document import Document, document_of
from components.data.sources import python_stdlib
from components.data.spool import Documents, Spool, offsets_of
from components.errors import DataError

REAL = list(python_stdlib.read(python_stdlib.Config(max_documents=40)))


def spooled(path: Path, documents: list[Document]) -> Documents:
    with Spool(path) as spool:
        for document in documents:
            spool.append(document)
    return spool.documents()


def test_documents_come_back_the_same_as_often_as_asked(tmp_path: Path) -> None:
    documents = spooled(tmp_path / "kept.jsonl", REAL)
    assert len(documents) == len(REAL)
    assert list(documents) == list(documents) == REAL
    assert (documents[0], documents[7], documents[-1]) == (REAL[0], REAL[7], REAL[-1])


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 5), (13, 29), (38, 99), (39, 40), (40, 41)])
def test_a_part_is_the_slice_of_a_list(tmp_path: Path, start: int, stop: int) -> None:
    documents = spooled(tmp_path / "kept.jsonl", REAL)
    assert list(documents.part(start, stop)) == REAL[start:stop]


def test_a_document_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    documents = spooled(tmp_path / "kept.jsonl", REAL[:3])
    with pytest.raises(IndexError, match="document 3 of 3"):
        documents[3]
    with pytest.raises(IndexError, match="document -4 of 3"):
        documents[-4]


def test_any_text_survives(tmp_path: Path) -> None:
    texts = ["", "\n\r\n\u2028\x85 lines", "\0", "\ud800 half a pair", "naïve 😀 文"]
    odd = [Document(f"{i}", text, "a\nb", "", flaw="", source="mixed") for i, text in enumerate(texts)]
    assert list(spooled(tmp_path / "odd.jsonl", odd)) == odd


def test_only_the_path_travels_to_another_process(tmp_path: Path) -> None:
    documents = spooled(tmp_path / "kept.jsonl", REAL)
    assert len(documents) == len(REAL)
    sent = pickle.dumps(documents)
    assert len(sent) < 500
    assert list(pickle.loads(sent)) == REAL


def test_a_document_can_be_read_again_while_others_are_still_written(tmp_path: Path) -> None:
    with Spool(tmp_path / "kept.jsonl") as spool:
        for number, document in enumerate(REAL):
            spool.append(document)
            assert spool[number // 2] == REAL[number // 2]
    assert list(spool.documents()) == REAL


def test_what_an_earlier_run_left_is_overwritten(tmp_path: Path) -> None:
    spooled(tmp_path / "kept.jsonl", REAL)
    assert list(spooled(tmp_path / "kept.jsonl", REAL[:2])) == REAL[:2]


def test_a_spool_that_was_not_finished_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    spooled(path, REAL)
    unreadable = iter([REAL[0], REAL[1].path])
    with pytest.raises(AttributeError):
        spooled(path, unreadable)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="never finished"):
        len(Documents(path))


def test_a_spool_that_lost_its_end_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    documents = spooled(path, REAL)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="were written"):
        list(documents)


def test_a_spool_is_written_inside_its_block_and_read_after_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not open"):
        Spool(tmp_path / "kept.jsonl").append(REAL[0])
    with Spool(tmp_path / "kept.jsonl") as spool, pytest.raises(DataError, match="still open"):
        spool.documents()


def test_an_empty_spool_holds_nothing(tmp_path: Path) -> None:
    documents = spooled(tmp_path / "kept.jsonl", [])
    assert list(documents) == []
    assert offsets_of(documents.path).is_file()


def test_a_label_is_a_document_without_its_text_and_path(tmp_path: Path) -> None:
    texts = ['{"sha256": "no"}', 'end "sha256": ', "ü 漢字 \\", '"}\n{"sha256": "', ""]
    written = [replace(document_of(text.encode(), text), source=text) for text in texts]
    with Spool(tmp_path / "documents") as spool:
        for one in written:
            spool.append(one)
    documents = spool.documents()
    assert list(documents.labels()) == [replace(one, text="", path="") for one in written]
    assert list(documents.pick([3, 0, 3])) == [written[3], written[0], written[3]]
