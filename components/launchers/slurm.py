"""The same torchrun target as a batch job over several nodes of a Slurm cluster.

When to use: a cluster with `sbatch` on the machine that runs the flow and a file system that all nodes share.
What it costs: a queue wait before every start and every restart.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from string import Template

from pydantic import Field

from components import plugins, quiet, storage
from components.checkpoints import sign
from components.errors import ConfigError, JobError
from components.jobs import ENDING, FOLDER_VARIABLE, Handle, Job

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "infra" / "slurm" / "job.sbatch"
STOP_SECONDS = 120


class Config(plugins.Config):
    """Which part of the cluster a job asks for."""

    processes_per_node: int = Field(default=8, ge=1)
    """Ranks on one node; the profile's processes must be a multiple of it."""

    cpus_per_node: int = Field(default=8, ge=1)
    """Cores reserved on each node."""

    gpus_per_node: int = Field(default=0, ge=0)
    """Accelerators reserved on each node; 0 asks for none."""

    partition: str | None = None
    """Queue; None takes the cluster's default."""

    account: str | None = None
    """Who pays; None takes the user's default."""

    time_limit: str = Field(default="04:00:00", pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$")
    """Longest run, as [days-]hours:minutes:seconds."""

    rendezvous_seconds: int = Field(default=2400, ge=1)
    """How long a node waits for the others at the start."""

    python: str = sys.executable
    """Interpreter of the shared environment, as the nodes see it."""


@dataclass(frozen=True)
class BatchJob:
    """A submitted job, known by its number."""

    number: str
    folder: Path

    def poll(self) -> int | None:
        """Exit code once Slurm has ended the job; None while it is queued or runs."""
        state, code = self._state()
        if state in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}:
            return None
        return code if code or state == "COMPLETED" else 1

    def stop(self) -> None:
        """Cancel, and return only when no step of the job is left."""
        (self.folder / ENDING).touch()
        _slurm("scancel", self.number)
        deadline = time.monotonic() + STOP_SECONDS
        while self.survivors():
            if time.monotonic() > deadline:
                raise JobError(f"Slurm job {self.number} is still there {STOP_SECONDS} s after scancel")
            time.sleep(1)

    def survivors(self) -> list[int]:
        """The job's number while Slurm still holds nodes for it."""
        listed = _slurm(
            "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={self.number}", fail=False
        )
        left = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"}
        return [int(self.number)] if left & set(listed.split()) else []

    def log_tail(self, lines: int = 20) -> str:
        """The end of the batch log."""
        log = self.folder / "logs" / f"slurm-{self.number}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    def _state(self) -> tuple[str, int]:
        shown = _slurm("scontrol", "--oneliner", "show", "job", self.number)
        fields = dict(part.split("=", 1) for part in shown.split() if "=" in part)
        return fields["JobState"], int(fields.get("ExitCode", "1:0").split(":")[0])


def launch(job: Job, config: Config) -> Handle:
    """Write the batch script into the job's folder and submit it."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "no `sbatch` on this machine; run the flow on a login node or pass --profile laptop"
        )
    job.prepare()
    script = job.folder / "job.sbatch"
    script.write_text(render(job, config))
    number = _slurm("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    return BatchJob(number, job.folder)


def render(job: Job, config: Config) -> str:
    """The batch script of a job."""
    if job.processes % config.processes_per_node:
        raise ConfigError(
            f"processes={job.processes} is not a multiple of processes_per_node={config.processes_per_node}; "
            "change one with --set profile.processes=N or --set profile.launcher.processes_per_node=N"
        )
    wanted = {
        "partition": config.partition,
        "account": config.account,
        "gpus-per-node": config.gpus_per_node or None,
    }
    environment = {
        **quiet.ENVIRONMENT,
        **storage.inherited(),
        **sign.inherited(),
        **job.environment,
        FOLDER_VARIABLE: str(job.folder),
        "OMP_NUM_THREADS": str(job.threads_per_process),
        "PYTHONPATH": job.environment.get("PYTHONPATH", str(ROOT)),
    }
    return Template(TEMPLATE.read_text()).substitute(
        name=job.name,
        nodes=job.processes // config.processes_per_node,
        processes_per_node=config.processes_per_node,
        cpus_per_node=config.cpus_per_node,
        time_limit=config.time_limit,
        rendezvous_seconds=config.rendezvous_seconds,
        grace_seconds=job.grace_seconds,
        folder=job.folder,
        root=ROOT,
        options="\n".join(f"#SBATCH --{key}={value}" for key, value in wanted.items() if value is not None),
        environment="\n".join(f"export {key}={shlex.quote(value)}" for key, value in environment.items()),
        python=config.python,
        target=job.target,
    )


def _slurm(*command: str, fail: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode and fail:
        raise JobError(f"`{shlex.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
