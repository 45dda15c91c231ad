"""A Prefect server, a worker and every deployment, for as long as this process lives.

`python -m flows._serve`. Daemons are started from here and not from a shell, because a worker stops by SIGINT
and a background job of a shell ignores it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import httpx

from components import quiet

PORT = int(os.environ.get("STANCHION_PREFECT_PORT", "4200"))
API = f"http://127.0.0.1:{PORT}/api"
READY_SECONDS = 120
PREFECT = os.path.relpath(Path(sys.executable).with_name("prefect"))


def main() -> int:
    """Start all three, say where the UI is, and take everything down when told to stop."""
    quiet.apply()
    home = Path(os.environ.setdefault("PREFECT_HOME", str(Path("runs/.prefect").absolute())))
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PREFECT_API_URL": API, "PREFECT_SERVER_UI_API_URL": API}
    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", "2")
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")  # see _heartbeats
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(
            _start(logs / "server.log", "server", "start", "--host", "127.0.0.1", "--port", str(PORT))
        )
        _wait_until_healthy(started[0], logs / "server.log")
        _prefect("work-pool", "create", "stanchion", "--type", "process", "--overwrite")
        _prefect("--no-prompt", "deploy", "--all")
        _python("flows._heartbeats")
        started.append(_start(logs / "worker.log", "worker", "start", "--pool", "stanchion"))
        _say(f"Prefect UI  http://127.0.0.1:{PORT}")
        _say(f"logs        {logs}")
        _say(f"try         PREFECT_API_URL={API} {PREFECT} deployment run end_to_end/end-to-end")
        _say("Ctrl-C ends the server, the worker and the runs it started")
        return _wait_for_the_first_to_end(started)
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(started)


def _start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _prefect(*arguments: str) -> None:
    _python("prefect", *arguments)


def _python(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"`{module} {' '.join(arguments)}` failed:\n{done.stdout}{done.stderr}")


def _wait_until_healthy(server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{API}/health", timeout=2).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    sys.exit(f"no Prefect server on port {PORT}; see {log}, or set STANCHION_PREFECT_PORT to a free port")


def _wait_for_the_first_to_end(started: list[subprocess.Popen[bytes]]) -> int:
    while True:
        for process in started:
            if (code := process.poll()) is not None:
                return code or 1
        time.sleep(0.5)


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    """The worker first, so that it ends its runs while the server still listens."""
    import psutil

    alive = [psutil.Process(process.pid) for process in started if process.poll() is None]
    tree = [child for process in alive for child in process.children(recursive=True)]
    for process in reversed(started):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
    for left in psutil.wait_procs(tree, timeout=5)[1]:
        left.kill()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
