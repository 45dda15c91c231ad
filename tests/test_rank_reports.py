"""What a rank reports of its part of a save reaches rank 0, however soon rank 0 has done with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from components import local_files
from components.checkpoints import rank_files
from components.checkpoints.rank_files import Report


def test_a_report_that_is_read_and_removed_while_it_is_being_flushed_is_no_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, read = tmp_path / "step-000005.partial", []
    flushed = local_files._sync_folder

    def read_first(folder: Path) -> None:
        read.append(rank_files.told(staged, ranks=1))
        shutil.rmtree(folder)
        flushed(folder)

    monkeypatch.setattr(local_files, "_sync_folder", read_first)
    rank_files.tell(Report(rank=0), staged)
    assert [report.rank for report in read[0] or []] == [0]
    assert os.listdir(tmp_path) == []
