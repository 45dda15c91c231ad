"""What several test files share: a quiet environment and one temporary Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from components import quiet
from components.jobs import FOLDER_VARIABLE, Job

quiet.apply()
os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "components,maturity")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One temporary Prefect server and database for all flow tests of a session."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def small_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real data set of thirty-odd modules of the standard library, 320 tokens in its vocabulary."""
    from components.data import dataset, shards, tokenizer
    from components.data.curation.checked import Checked
    from components.data.document import document_of

    folder = Path(sysconfig.get_path("stdlib"))
    found = [path for name in ("json", "email", "http") for path in sorted((folder / name).glob("*.py"))]
    kept = [document_of(path.read_bytes(), path.name) for path in found]
    kept = [document for document in kept if len(document.text) > 64]
    texts = [document.text for document in kept]
    checked = Checked(kept, [], {"success": True}, digest="0" * 64, characters=sum(map(len, texts)))
    trained = tokenizer.train(texts, tokenizer.Config(vocab_size=320))
    url = tmp_path_factory.mktemp("data") / "shards"
    config = shards.Config(documents_per_shard=8, held_out_share=0.2)
    scratch = tmp_path_factory.mktemp("scratch")
    dataset.make_dataset(checked, trained, str(url), kind="python_stdlib", config=config, scratch=scratch)
    return url


@pytest.fixture(scope="session")
def small_job(small_shards: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Pre-train a very small model into a folder, under a real torchrun."""

    def train(
        folder: Path,
        *,
        steps: int = 4,
        processes: int = 1,
        resume_from: Path | None = None,
        environment: dict[str, str] | None = None,
        stage: int = 2,
    ) -> subprocess.CompletedProcess[str]:
        model = {"hidden_size": 32, "num_layers": 2, "intermediate_size": 64, "context_length": 64}
        training = {"steps": steps, "batch_size": 4, "checkpoint_every": 2, "evaluate_every": 2}
        settings = {
            "shards": str(small_shards),
            "checkpoints": str(folder / "checkpoints"),
            "scratch": str(folder / "scratch"),
            "model": model,
            "training": {**training, "held_out_sequences": 12, "warmup_share": 0.0, "timeout_seconds": 30},
            "parallelism": {"zero": {"stage": stage}},
            "resume_from": str(resume_from) if resume_from else None,
        }
        job = Job("pretrain", "components.training.pretrain", settings, folder / "job", processes)
        job.prepare()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return subprocess.run(
            [*torchrun, f"--nproc-per-node={processes}", "-m", job.target],
            env={
                **os.environ,
                FOLDER_VARIABLE: str(job.folder),
                "OMP_NUM_THREADS": "1",
                **(environment or {}),
            },
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            timeout=240,
        )

    return train


@pytest.fixture(scope="session")
def small_checkpoints(small_job: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two committed checkpoints of one rank, steps 2 and 4; a test that changes them copies them first."""
    folder = tmp_path_factory.mktemp("trained")
    done = small_job(folder)
    assert done.returncode == 0, done.stderr
    return folder / "checkpoints"
