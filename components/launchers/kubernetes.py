"""The same torchrun target as an Indexed Job of a Kubernetes cluster, one pod a node.

When to use: a cluster that `kubectl` reaches, with a volume that the pods and the flow's machine both mount.
What it costs: an image to build and keep in step with the code. The manifest is checked by rendering it and
reading it back; it has not been applied to a cluster from this repository's tests.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from pydantic import Field

from components import plugins, quiet, storage
from components.checkpoints import sign
from components.errors import ConfigError, JobError
from components.jobs import ENDING, FOLDER_VARIABLE, Handle, Job

TEMPLATE = Path(__file__).parents[2] / "infra" / "kubernetes" / "job.yaml"
RENDEZVOUS_PORT = 29500
STOP_SECONDS = 180
TORCHRUN_SECONDS = 10
"""What torchrun takes to end after its ranks."""


class Config(plugins.Config):
    """What a job asks the cluster for."""

    image: str = Field(default="stanchion:0.1.0", min_length=1)
    """Image with this code and its environment."""

    namespace: str = "default"
    """Namespace of the job."""

    processes_per_node: int = Field(default=8, ge=1)
    """Ranks in one pod; the profile's processes must be a multiple of it."""

    cpus_per_node: int = Field(default=8, ge=1)
    """Cores of one pod."""

    memory_per_node: str = Field(default="32Gi", pattern=r"^\d+(Mi|Gi|Ti)$")
    """Memory of one pod."""

    gpus_per_node: int = Field(default=0, ge=0)
    """Accelerators of one pod; 0 asks for none."""

    rendezvous_seconds: int = Field(default=2400, ge=1)
    """How long a pod waits for the others at the start."""

    claim: str = "stanchion-runs"
    """Persistent volume claim that holds the run folders."""

    mount: str = "/runs"
    """Where the claim is mounted, in the pods and on the flow's machine alike."""


@dataclass(frozen=True)
class ClusterJob:
    """A job of the cluster, known by its name."""

    name: str
    namespace: str
    folder: Path

    def poll(self) -> int | None:
        """0 or 1 once the job has completed or failed; None before."""
        status = json.loads(self._kubectl("get", "job", self.name, "-o", "json"))["status"]
        ended = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
        if "Complete" in ended:
            return 0
        return 1 if "Failed" in ended else None

    def stop(self) -> None:
        """Delete job and service, and return only when no pod is left."""
        (self.folder / ENDING).touch()
        self._kubectl("delete", "job,service", self.name, "--ignore-not-found", "--cascade=foreground")
        deadline = time.monotonic() + STOP_SECONDS
        while self.survivors():
            if time.monotonic() > deadline:
                raise JobError(f"pods of job {self.name} are still there {STOP_SECONDS} s after its deletion")
            time.sleep(2)

    def survivors(self) -> list[int]:
        """One entry, its index, for every pod that is still there."""
        pods = self._kubectl("get", "pods", f"--selector=job-name={self.name}", "-o", "name").split()
        return list(range(len(pods)))

    def log_tail(self, lines: int = 20) -> str:
        """The end of the pods' logs, each line with its pod's name."""
        chosen = [f"--selector=job-name={self.name}", f"--tail={lines}", "--prefix"]
        return self._kubectl("logs", *chosen)

    def _kubectl(self, *arguments: str) -> str:
        return _kubectl(self.namespace, *arguments)


def launch(job: Job, config: Config) -> Handle:
    """Apply the job's manifest."""
    if shutil.which("kubectl") is None:
        raise ConfigError("no `kubectl` on this machine; install it or pass --profile laptop")
    job.prepare()
    manifest = job.folder / "job.yaml"
    manifest.write_text(render(job, config))
    _kubectl(config.namespace, "apply", "-f", str(manifest))
    return ClusterJob(name_of(job), config.namespace, job.folder)


def name_of(job: Job) -> str:
    """A name the cluster accepts, one for each folder."""
    words = f"stanchion-{job.folder.parent.parent.name}-{job.name}".lower()
    return re.sub(r"[^a-z0-9]+", "-", words)[:52].strip("-")


def render(job: Job, config: Config) -> str:
    """The manifest of a job."""
    if job.processes % config.processes_per_node:
        raise ConfigError(
            f"processes={job.processes} is not a multiple of processes_per_node={config.processes_per_node}; "
            "change one with --set profile.processes=N or --set profile.launcher.processes_per_node=N"
        )
    name, nodes = name_of(job), job.processes // config.processes_per_node
    resources: dict[str, Any] = {"cpu": config.cpus_per_node, "memory": config.memory_per_node}
    if config.gpus_per_node:
        resources["nvidia.com/gpu"] = config.gpus_per_node
    arguments = [
        f"--nnodes={nodes}",
        f"--nproc-per-node={config.processes_per_node}",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        f"--master-addr={name}-0.{name}",
        f"--master-port={RENDEZVOUS_PORT}",
        f"--rdzv-conf=timeout={config.rendezvous_seconds}",
        "--max-restarts=0",
        f"--shutdown-timeout={job.grace_seconds}",
        f"--log-dir={job.folder}/logs",
        "--redirects=3",
        "-m",
        job.target,
    ]
    environment = {
        **quiet.ENVIRONMENT,
        **storage.inherited(),
        **sign.inherited(),
        **job.environment,
        FOLDER_VARIABLE: str(job.folder),
        "OMP_NUM_THREADS": str(job.threads_per_process),
    }
    return Template(TEMPLATE.read_text()).substitute(
        name=name,
        namespace=config.namespace,
        nodes=nodes,
        pod_grace_seconds=job.grace_seconds + TORCHRUN_SECONDS,
        image=config.image,
        arguments=json.dumps(arguments),
        environment=json.dumps([{"name": key, "value": value} for key, value in environment.items()]),
        resources=json.dumps(resources),
        mount=config.mount,
        claim=config.claim,
    )


def _kubectl(namespace: str, *arguments: str) -> str:
    command = ["kubectl", f"--namespace={namespace}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise JobError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
