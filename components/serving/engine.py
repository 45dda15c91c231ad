"""The command and the environment that start vLLM, on a CPU or on a GPU: the same but for the sizing."""

from __future__ import annotations

import sys
from pathlib import Path

from components import quiet, storage
from components.errors import ConfigError
from components.serving import kv_cache
from components.serving.release import Release

MODULE = ("-m", "vllm.entrypoints.openai.api_server")  # the CPU distribution's `vllm` command fails
CPU_SCRIPT = ("-P", str(Path(__file__).with_name("vllm_on_cpu.py")))
CPU_KV_CACHE_MEGABYTES = 64
CPU_MAX_SEQUENCES = 32
CPU_BLOCK_SIZE = 32


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


def check_memory(folder: Path, release: Release, *, device: str, kv_cache_megabytes: int | None) -> None:
    """Refuse in a millisecond what vLLM would refuse in twenty seconds: a cache too small for one request."""
    if device != "cpu":
        return
    megabytes = kv_cache_megabytes or CPU_KV_CACHE_MEGABYTES
    per_token = kv_cache.bytes_per_token(storage.read_json(str(folder / "config.json")), release.precision)
    needed = kv_cache.bytes_needed(release.max_model_len, per_token, block_size=CPU_BLOCK_SIZE)
    if needed > megabytes * kv_cache.MEBIBYTE:
        raise ConfigError(
            f"{megabytes} MiB for keys and values do not hold one request of {release.max_model_len} tokens; "
            f"pass --set serving.kv_cache_megabytes={-(-needed // kv_cache.MEBIBYTE)} or lower "
            "serving.max_model_len"
        )


def _sizing(device: str, kv_cache_megabytes: int | None) -> list[str]:
    if device == "cpu":
        memory = kv_cache_megabytes or CPU_KV_CACHE_MEGABYTES
        sequences = str(CPU_MAX_SEQUENCES)
        return [
            *("--enforce-eager", "--block-size", str(CPU_BLOCK_SIZE), "--max-num-seqs", sequences),
            *("--kv-cache-memory-bytes", f"{memory}M"),
        ]
    return ["--kv-cache-memory-bytes", f"{kv_cache_megabytes}M"] if kv_cache_megabytes else []
