"""The flow from a source to a record of verified shards."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from components.config import Profile, Run, Sharding, configure, run_folder
from components.data.integrity import check_dataset
from components.data.spool import Documents
from components.data.writing.plan import Plan
from components.errors import ConfigError, GateRefused
from components.storage import sha256_of_file
from tasks.write_group import CLUSTERS, GROUPS, write_in_groups

pytestmark = pytest.mark.usefixtures("prefect_server")


def small(tmp_path: Path, *settings: str) -> tuple[Run, Profile]:
    return configure(
        "laptop",
        [
            f"profile.storage.root={tmp_path}",
            "data.source.max_documents=60",
            "data.tokenizer.vocab_size=400",
            "data.shards.held_out_share=0.2",
            *settings,
        ],
    )


def test_the_flow_leaves_a_record_of_verified_shards_and_is_not_repeated(tmp_path: Path) -> None:
    from flows.shard_dataset import shard_dataset

    run, profile = small(tmp_path)
    record = shard_dataset(run, profile)
    shards = record.output("shards")
    listed = check_dataset(shards.url, digest=shards.digest)
    assert record.metrics["shards"] == len(listed.shards)
    assert record.metrics["documents"] == 60
    assert record.metrics["unigram_cross_entropy"] == listed.unigram_cross_entropy
    assert set(record.metrics["seconds"]) == {
        "check_source",
        "train_tokenizer",
        "write_shards",
        "check_shards",
    }
    assert all(verdict.passed for verdict in record.verdicts)
    page = record.output("data_page")
    assert Path(page.url) == Path(run_folder(run, profile).path("report", "data.html"))
    assert page.digest == sha256_of_file(Path(page.url))
    assert shard_dataset(run, profile) == record

    shutil.rmtree(shards.url)
    rebuilt = shard_dataset(run, profile)
    assert rebuilt.started_at > record.started_at
    assert rebuilt.outputs == record.outputs


def test_a_source_that_fails_its_suite_is_refused_and_leaves_no_shards(tmp_path: Path) -> None:
    from flows.shard_dataset import shard_dataset

    run, profile = small(tmp_path, "data.checks.min_characters=10000")
    with pytest.raises(GateRefused, match="set_aside_share"):
        shard_dataset(run, profile)
    record = run_folder(run, profile).read("shard_dataset")
    assert record is not None
    assert record.status == "refused"
    assert [verdict.passed for verdict in record.verdicts] == [True, True, False]
    assert not Path(run_folder(run, profile).path("shards")).exists()
    assert not Path(run_folder(run, profile).path("report")).exists()


def test_a_task_runner_writes_the_same_data_set_in_few_tasks(tmp_path: Path) -> None:
    from flows.shard_dataset import shard_dataset

    settings = ("data.shards.documents_per_shard=2",)
    alone, mapped = (
        shard_dataset(*small(tmp_path / runner, *settings, f"profile.sharding.runner={runner}"))
        for runner in ("processes", "threads")
    )
    assert alone.metrics["shards"] > GROUPS
    assert mapped.output("shards").digest == alone.output("shards").digest


@pytest.mark.parametrize(
    "runner", [name for name, (package, _) in CLUSTERS.items() if not find_spec(package)]
)
def test_a_runner_that_is_not_installed_says_how_to(runner: str) -> None:
    with pytest.raises(ConfigError, match=rf"'\.\[{runner}\]'"):
        write_in_groups(Plan(Path(), Documents(Path()), "", []), print, sharding=Sharding(runner=runner))
