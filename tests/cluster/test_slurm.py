"""The Slurm launcher on a real four-node cluster of this machine; needs root and Debian's Slurm packages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.jobs import Job
from components.launchers import slurm

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("sbatch", "slurmctld", "slurmd", "munged"))),
        reason="needs root and: apt-get install slurmctld slurmd munge slurm-client slurm-wlm-basic-plugins",
    ),
]

CONFIGURATION = """
ClusterName=stanchion
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket,cred_expire=5
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=5,batch_sched_delay=1
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/%n.log
KillWait=5
MinJobAge=60
ReturnToService=2
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
{nodes}
PartitionName=all Nodes=n[1-4] Default=YES MaxTime=1:00:00 State=UP
"""

TARGET = """
import sys, time
from components.jobs import this_rank
rank = this_rank()
for step in range(int(rank.settings["steps"])):
    rank.heartbeat.beat(step, "forward")
    time.sleep(0.1)
rank.finish({"ranks": rank.world_size})
sys.exit(rank.settings["exit"] if rank.rank == 1 else 0)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Path]:
    """munge, a controller and four node daemons, up in about a second and gone at the end."""
    run = tmp_path_factory.mktemp("slurm")
    run.chmod(0o755)
    (run / "munge.key").write_bytes(os.urandom(128))
    (run / "munge.key").chmod(0o600)
    host = socket.gethostname()
    nodes = "\n".join(
        f"NodeName=n{i} NodeAddr=127.0.0.1 NodeHostname={host} Port={27000 + i} CPUs=1 RealMemory=2000"
        for i in range(1, 5)
    )
    configuration = run / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=host, run=run, nodes=nodes))
    munge = [f"--{name}-file={run}/munged.{name}" for name in ("pid", "log", "seed")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        start("munged", "--force", f"--key-file={run}/munge.key", f"--socket={run}/munge.socket", *munge)
        start("slurmctld", "-f", str(configuration))
        for i in range(1, 5):
            start("slurmd", "-f", str(configuration), "-N", f"n{i}")
        wait_until(lambda: set(ask("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}, 30)
        try:
            yield run
        finally:
            for pid in run.glob("*.pid"):
                subprocess.run(["kill", pid.read_text().strip()], check=False)
            wait_until(lambda: str(run) not in ask("ps", "-eo", "args"), 30)


def start(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_until(true, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "the cluster did not get there in time"
        time.sleep(0.2)


@pytest.fixture
def job(tmp_path) -> Job:
    """Two ranks on two nodes of a target that needs no torch beyond torchrun."""
    (tmp_path / "target.py").write_text(TARGET)
    folder = tmp_path / "job"
    environment = {"PYTHONPATH": f"{slurm.ROOT}:{tmp_path}"}
    return Job("drill", "target", {"steps": 3, "exit": 0}, folder, processes=2, environment=environment)


CONFIG = slurm.Config(processes_per_node=1, cpus_per_node=1, time_limit="00:05:00", python=sys.executable)


def test_two_nodes_run_one_job_to_its_result(cluster, job) -> None:
    handle = slurm.launch(job, CONFIG)
    wait_until(lambda: handle.poll() is not None, 120)
    assert handle.poll() == 0, handle.log_tail()
    assert job.result() == {"ranks": 2}
    assert handle.survivors() == []


def test_a_failed_rank_fails_the_job(cluster, job) -> None:
    failing = Job(job.name, job.target, {"steps": 3, "exit": 7}, job.folder, 2, environment=job.environment)
    handle = slurm.launch(failing, CONFIG)
    wait_until(lambda: handle.poll() is not None, 120)
    assert handle.poll() != 0


def test_a_stopped_job_leaves_nothing_on_the_nodes(cluster, job) -> None:
    endless = Job(
        job.name, job.target, {"steps": 9999, "exit": 0}, job.folder, 2, environment=job.environment
    )
    handle = slurm.launch(endless, CONFIG)
    wait_until(lambda: any((job.folder / "beats").iterdir()), 120)
    handle.stop()
    assert handle.survivors() == []
    wait_until(lambda: "target" not in ask("ps", "-eo", "args").replace("test_slurm", ""), 20)
