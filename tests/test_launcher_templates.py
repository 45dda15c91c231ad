"""What the cluster launchers would submit, read back; the clusters themselves are not here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from components import storage
from components.config import Profile, Run, run_folder
from components.errors import ConfigError
from components.jobs import Job
from components.launchers import kubernetes, slurm


@pytest.fixture
def job(tmp_path) -> Job:
    folder = tmp_path / "demo-1234" / "scratch" / "pretrain"
    return Job("pretrain", "components.training.pretrain", {"a": 1}, folder, processes=8)


def test_the_batch_script_is_valid_shell_and_asks_for_the_nodes(job, tmp_path) -> None:
    config = slurm.Config(processes_per_node=4, gpus_per_node=4, partition="gpu")
    script = tmp_path / "job.sbatch"
    script.write_text(slurm.render(job, config))
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert "#SBATCH --nodes=2" in text
    assert "#SBATCH --gpus-per-node=4" in text
    assert "#SBATCH --partition=gpu" in text
    assert "-m components.training.pretrain" in text
    assert "#SBATCH --signal=TERM@30" in text
    assert "--shutdown-timeout 30 " in text, "ranks have the grace period to save in"


def test_the_manifest_is_an_indexed_job_with_its_service(job) -> None:
    config = kubernetes.Config(processes_per_node=4, gpus_per_node=4)
    service, made = yaml.safe_load_all(kubernetes.render(job, config))
    assert service["metadata"]["name"] == made["metadata"]["name"] == "stanchion-demo-1234-pretrain"
    assert made["spec"]["completions"] == made["spec"]["parallelism"] == 2
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 30
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert "--shutdown-timeout=30" in container["args"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert container["args"][-2:] == ["-m", "components.training.pretrain"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in container["env"]


@pytest.mark.parametrize("launcher", [slurm, kubernetes])
def test_ranks_elsewhere_treat_storage_as_the_profile_says(launcher, job, monkeypatch) -> None:
    monkeypatch.setenv("STANCHION_STORAGE", "{}")
    profile = Profile.model_validate("slurm")
    patient = profile.storage.model_copy(update={"retries": 17})
    run_folder(Run(), profile.model_copy(update={"storage": patient}))
    assert "retries" in launcher.render(job, launcher.Config(processes_per_node=4))
    assert storage.options().retries == 17


@pytest.mark.parametrize("launcher", [slurm, kubernetes])
def test_ranks_that_do_not_fill_whole_nodes_are_refused(launcher, job) -> None:
    with pytest.raises(ConfigError, match="not a multiple of processes_per_node"):
        launcher.render(job, launcher.Config(processes_per_node=3))


@pytest.mark.parametrize(("launcher", "command"), [(slurm, "sbatch"), (kubernetes, "kubectl")])
def test_a_machine_without_the_client_says_so(launcher, command, job, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=f"no `{command}`"):
        launcher.launch(job, launcher.Config())


def fake_slurm(folder: Path, monkeypatch, *, state: str, code: str = "0:0") -> None:
    """Stands in for the cluster's commands; the real cluster is a test of its own."""
    scripts = {
        "sbatch": "echo '42;cluster'",
        "scontrol": f"echo 'JobId=42 JobState={state} ExitCode={code}'",
        "squeue": f"echo {state}",
        "scancel": "true",
    }
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("state", "code", "expected"),
    [
        ("PENDING", "0:0", None),
        ("RUNNING", "0:0", None),
        ("COMPLETED", "0:0", 0),
        ("FAILED", "3:0", 3),
        ("NODE_FAIL", "0:0", 1),
    ],
)
def test_slurm_states_become_exit_codes(job, tmp_path, monkeypatch, state, code, expected) -> None:
    fake_slurm(tmp_path, monkeypatch, state=state, code=code)
    handle = slurm.launch(job, slurm.Config(processes_per_node=4))
    assert handle.poll() == expected
