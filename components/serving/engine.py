"""The command and the environment that start vLLM, on a CPU or on a GPU: the same but for the sizing."""

from __future__ import annotations

import sys
from pathlib import Path

from components import quiet
from components.serving.release import Release

MODULE = ("-m", "vllm.entrypoints.openai.api_server")  # the CPU distribution's `vllm` command fails
CPU_SCRIPT = ("-P", str(Path(__file__).with_name("vllm_on_cpu.py")))
CPU_KV_CACHE_MEGABYTES = 64
CPU_MAX_SEQUENCES = 32


def command(
    folder: Path, release: Release, *, port: int, device: str, kv_cache_megabytes: int | None
) -> list[str]:
    """What to execute."""
    return [
        *(sys.executable, *(CPU_SCRIPT if device == "cpu" else MODULE)),
        *("--model", str(folder), "--served-model-name", release.model),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--no-enable-log-requests", "--disable-uvicorn-access-log"),
        *_sizing(device, kv_cache_megabytes),
        *release.engine_flags,
    ]


def environment(cache: Path, *, device: str, threads: int) -> dict[str, str]:
    """Nothing phones home, caches stay in one folder, and threads do not spin against the neighbours."""
    quiet_ones = {**quiet.ENVIRONMENT, "VLLM_CACHE_ROOT": str(cache), "HF_HOME": str(cache / "huggingface")}
    if device != "cpu":
        return quiet_ones
    return quiet_ones | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "GOMP_SPINCOUNT": "0",
        "TORCHDYNAMO_DISABLE": "1",  # else the first request for log-probabilities compiles for 17 s
    }


def _sizing(device: str, kv_cache_megabytes: int | None) -> list[str]:
    if device == "cpu":
        memory = kv_cache_megabytes or CPU_KV_CACHE_MEGABYTES
        sequences = str(CPU_MAX_SEQUENCES)
        return [
            *("--enforce-eager", "--block-size", "32", "--max-num-seqs", sequences),
            *("--kv-cache-memory-bytes", f"{memory}M"),
        ]
    return ["--kv-cache-memory-bytes", f"{kv_cache_megabytes}M"] if kv_cache_megabytes else []
