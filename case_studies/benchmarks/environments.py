"""An environment of its own for each peer: what one pins, another may not find beside its own pins."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

logger = logging.getLogger(__name__)
PATIENCE_SECONDS = 900


class Absent(Exception):
    """A peer cannot be had here; its message says why."""


def python_of(packages: tuple[str, ...], folder: Path, uv: str) -> Path:
    """The interpreter that has these packages, installed when first asked for."""
    if not packages:
        return Path(sys.executable)
    name = hashlib.sha256(json.dumps(packages).encode()).hexdigest()[:8]
    place = folder / f"{packages[0].partition('==')[0]}-{name}"
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists():
        logger.info("installing %s into %s", packages[0], place)
        _run(uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(place))
        _run(uv, *_install(python), *map(_same_as_ours, packages))
        done.touch()
    return python


def _install(python: Path) -> list[str]:
    # A local torch build, when find-links names one, and otherwise the small one: no peer uses a device.
    local = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    torch = [] if local else ["--torch-backend", "cpu"]
    return ["pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *torch]


def _same_as_ours(package: str) -> str:
    """The torch that we read with, for all."""
    if package != "torch":
        return package
    return f"torch=={metadata.version('torch').partition('+')[0]}"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Absent(f"{command[0]} {command[1]}: {error}") from None
    if done.returncode:
        raise Absent(done.stderr.strip()[-500:] or f"{command[0]} {command[1]} ended with {done.returncode}")
