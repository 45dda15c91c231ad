"""A flow run that is cancelled or killed leaves no process behind, and does not stay Running.

Claimed, for runs of a worker and runs that are served: ten seconds after a cancel, or after a kill -9 of its
process, no process of the run is left; soon after it is Cancelled, or Crashed. When whoever started it is
killed as well, nobody is left to tell; then the server misses its heartbeats, and calls it Crashed.

How it is tried: `python -m flows._serve`, so a real server and worker, and `flow.serve`; a flow that launches
two ranks under supervision, as pre-training does. Its processes are those of its tree when it is ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import yaml

from components.errors import StanchionError
from components.reliability import heartbeat

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

TITLE = "A cancelled or killed flow leaves no process and does not stay Running"
ROOT = Path(__file__).parents[2]
SERVED = """
from prefect.flows import EntrypointType
from case_studies.proofs._endless import endless
endless.serve("served", entrypoint_type=EntrypointType.MODULE_PATH, pause_on_shutdown=False)
"""
PROCESS_SECONDS, STATE_SECONDS = 10.0, 30.0
"""From the order to the end of the last process, and to the run's last state. A worker looks every few
seconds whether what it has ended is gone."""
START_SECONDS = 240.0
MISSED_SECONDS = 300.0
"""In which the server must have missed the heartbeats of a run of which nobody tells."""


class End(NamedTuple):
    """How a run ended."""

    processes: int
    """It had, the ranks among them."""
    seconds_to_last_process: float
    seconds_to_state: float
    state: str


def prove(*, seed: int = 0, repeats: int = 3) -> dict[str, Any]:
    """End that many runs in each way, of a worker and served; then one together with who served it."""
    ends: dict[str, list[End]] = {}
    with tempfile.TemporaryDirectory() as scratch, platform(Path(scratch)) as place:
        for deployment in ("worker", "served"):
            for name, end in (("cancel", cancel), ("kill -9", kill)):
                ends[f"{name}, {deployment}"] = [
                    ended(place / f"{deployment}-{name[:4]}-{n}", deployment, end) for n in range(repeats)
                ]
        alone = ended(place / "abandoned", "served", kill_with_parent, wait=MISSED_SECONDS)
    wrong = [name for name, found in ends.items() if not all(is_right(name, one) for one in found)]
    if not is_right("kill -9 with its parent", alone, MISSED_SECONDS):
        wrong.append("kill -9 with its parent")
    told = {name: [one._asdict() for one in found] for name, found in ends.items()}
    told["kill -9 with its parent"] = [alone._asdict()]
    return {"holds": not wrong, "wrong": wrong, "ends": told}


def is_right(name: str, one: End, state_seconds: float = STATE_SECONDS) -> bool:
    """No process for long, and the state that tells what happened."""
    wanted = "Cancelled" if name.startswith("cancel") else "Crashed"
    in_time = one.seconds_to_last_process <= PROCESS_SECONDS and one.seconds_to_state <= state_seconds
    return in_time and one.state == wanted


@contextmanager
def platform(folder: Path) -> Iterator[Path]:
    """A server, a worker and a process that serves, all gone afterwards; a folder for jobs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    before = dict(os.environ)
    os.environ |= {
        "STANCHION_PREFECT_PORT": str(port),
        "PREFECT_HOME": str(folder / "home"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    }
    log = (folder / "platform.log").open("wb")
    daemons = [_daemon(log, "-m", "flows._serve")]
    try:
        _until(lambda: b"Ctrl-C" in (folder / "platform.log").read_bytes(), START_SECONDS, log.name)
        _deploy(folder)
        daemons.append(_daemon(log, "-c", SERVED))
        yield folder
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=60)
        log.close()
        os.environ.clear()
        os.environ.update(before)


def ended(
    folder: Path, deployment: str, end: Callable[[FlowRun, psutil.Process], None], wait: float = 60.0
) -> End:
    """Start a run, end it once its ranks beat, and see what becomes of its processes and its state."""
    from prefect.deployments import run_deployment

    run: Any = run_deployment(f"endless/{deployment}", parameters={"folder": str(folder)}, timeout=0)
    _until(lambda: len(_beating(folder)) == 2, START_SECONDS, f"the ranks of {folder}")
    launcher = psutil.Process(_beating(folder)[0]).parent()
    flow = launcher.parent() if launcher else None
    if flow is None:
        raise StanchionError(f"the run of {folder} has lost its flow before it was ended")
    processes = [flow, *flow.children(recursive=True)]
    started = time.monotonic()
    end(run, flow)
    gone = _until(lambda: not any(map(_is_alive, processes)), wait, f"the end of {processes}") - started
    told = _until(lambda: _state(run) not in ("Running", "Cancelling"), wait, f"the state of {run.name}")
    return End(len(processes), round(gone, 2), round(told - started, 2), _state(run))


def cancel(run: FlowRun, flow: psutil.Process) -> None:
    """As the button of the UI does."""
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelling

    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Cancelling())


def kill(run: FlowRun, flow: psutil.Process) -> None:
    """The process that runs the flow."""
    flow.kill()


def kill_with_parent(run: FlowRun, flow: psutil.Process) -> None:
    """That, and first whoever started it and would tell."""
    parent = flow.parent()
    if parent is not None:
        parent.kill()
    flow.kill()


def _daemon(log: Any, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _deploy(folder: Path) -> None:
    """For the worker, by module entrypoint as everything in `prefect.yaml`."""
    deployment = {
        "name": "worker",
        "entrypoint": "case_studies.proofs._endless.endless",
        "work_pool": {"name": "stanchion"},
    }
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump({"name": "proof", "deployments": [deployment]}))
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def _beating(folder: Path) -> list[int]:
    return [beat.pid for beat in heartbeat.read(folder / "beats") if beat.step > 0]


def _state(run: FlowRun) -> str:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run.id).state
    return str(state.name) if state else "none"


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds of the clock at which it became true."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise StanchionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return time.monotonic()
