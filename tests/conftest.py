"""What several test files share: a quiet environment and one temporary Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components import quiet
from components.data.document import Document
from components.jobs import FOLDER_VARIABLE, Job
from components.reliability.faulty_object_store import FaultyStore

quiet.apply()
os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "components,maturity")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """One temporary Prefect server and database for all flow tests of a session."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def make_shards(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Document]], Path]:
    """Publish documents as a data set with 320 tokens in its vocabulary."""
    from components.data import shards, tokenizer
    from components.data.curation.checked import Checked
    from components.data.sources import python_stdlib
    from components.data.writing import dataset

    def make(kept: list[Document]) -> Path:
        texts = [document.text for document in kept]
        checked = Checked(kept, [], {"success": True}, digest="0" * 64, characters=sum(map(len, texts)))
        trained = tokenizer.train(texts, tokenizer.Config(vocab_size=320))
        url = tmp_path_factory.mktemp("data") / "shards"
        config = shards.Config(documents_per_shard=8, held_out_share=0.2)
        scratch, source = tmp_path_factory.mktemp("scratch"), python_stdlib.Config()
        dataset.make_dataset(checked, trained, str(url), source=source, config=config, scratch=scratch)
        return url

    return make


@pytest.fixture(scope="session")
def small_documents() -> list[Document]:
    """Thirty-odd modules of the standard library."""
    from components.data.document import document_of

    folder = Path(sysconfig.get_path("stdlib"))
    found = [path for name in ("json", "email", "http") for path in sorted((folder / name).glob("*.py"))]
    kept = [document_of(path.read_bytes(), path.name) for path in found]
    return [document for document in kept if len(document.text) > 64]


@pytest.fixture(scope="session")
def small_shards(small_documents: list[Document], make_shards: Callable[[list[Document]], Path]) -> Path:
    """A real data set of those modules."""
    return make_shards(small_documents)


@pytest.fixture(scope="session")
def short_shards(small_documents: list[Document], make_shards: Callable[[list[Document]], Path]) -> Path:
    """A mixture of short documents: the functions and classes of those modules, email's apart from others."""
    from components.data.document import document_of

    pieces = dict.fromkeys(
        piece.strip()
        for document in small_documents
        for piece in document.text.split("\n\n")
        if 64 < len(piece) < 400
    )
    kept = [
        replace(document_of(text.encode(), f"{number}.py"), source="mail" if "mail" in text else "code")
        for number, text in enumerate(list(pieces)[:400])
    ]
    return make_shards(kept)


@pytest.fixture(scope="session")
def small_job(small_shards: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Pre-train a very small model into a folder, under a real torchrun; `more` are settings of training."""

    def train(
        folder: Path,
        *,
        steps: int = 4,
        processes: int = 1,
        resume_from: Path | None = None,
        environment: dict[str, str] | None = None,
        stage: int = 2,
        shards: Path | str | None = None,
        **more: Any,
    ) -> subprocess.CompletedProcess[str]:
        model = {"hidden_size": 32, "num_layers": 2, "intermediate_size": 64, "context_length": 64}
        training = {"steps": steps, "batch_size": 4, "checkpoint_every": 2, "evaluate_every": 2, **more}
        settings = {
            "shards": str(shards or small_shards),
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


@pytest.fixture
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Seal and publish a checkpoint of a few small files, as the saver does, in a folder or URL; its URL."""
    from components import storage
    from components.checkpoints import manifest, state

    def make(folder: Path | str, step: int, *, to: str = "validated", attempt: int = 1) -> str:
        staged = tmp_path_factory.mktemp("staged") / "checkpoint"
        (staged / "deepspeed").mkdir(parents=True)
        (staged / "model.safetensors").write_bytes(f"weights of step {step}".encode() * 1000)
        (staged / "deepspeed" / "rank-0.pt").write_bytes(f"optimizer of step {step}".encode() * 1000)
        measured = {"sequences": 4, "sequence_length": 64, "precision": "bf16", "device": "cpu", "threads": 1}
        draft = manifest.Manifest(
            stage="pretrain",
            step=step,
            world_size=2,
            held_out=manifest.HeldOut(loss=5.0 - step / 1000, **measured),
            shards="nowhere",
            shards_digest="0" * 64,
            config_digest="0" * 64,
        )
        manifest.seal(staged, draft)
        name = f"step-{step:06d}" + (f"-{attempt}" if attempt > 1 else "")
        url = storage.join(str(folder), name)
        state.commit(url, manifest.digest(staged))
        storage.publish_folder(staged, url, last=manifest.NAME)
        if to in ("validated", "quarantined"):
            state.validate(url, [])
        if to == "quarantined":
            state.quarantine(url, "its loss did not reproduce")
        return url

    return make


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Address of a real S3 server: moto's, since it has the whole API and honours conditional puts.

    It runs as a process of its own and holds objects in memory, so durability and consistency between nodes
    are not proven by it.
    """
    from components.reliability import object_server

    with object_server.serve() as address:
        yield address


@pytest.fixture
def s3_root(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh bucket, and the environment that a user of any S3 server has."""
    from components.reliability import object_server
    from components.remote import filesystems

    for name, value in object_server.environment(s3_server).items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    object_server.make_bucket(s3_server, bucket)
    clients = filesystems.process().filesystems  # a new one takes longer than most tests
    filesystems.forget()
    filesystems.process().filesystems.update(clients)
    return f"s3://{bucket}"


@pytest.fixture
def faulty_s3(s3_root: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A proxy in front of that server through which `s3_root` is now reached; `.faults` is what it does."""
    from components.reliability import faulty_object_store
    from components.remote import filesystems

    with faulty_object_store.serve(s3_server) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        filesystems.forget()
        yield store
        filesystems.forget()
