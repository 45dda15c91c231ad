"""The house holds: plug-ins are whole, packages are ours, everything light stays light."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from components import plugins

ROOT = Path(__file__).parent.parent
PLUGINS = {
    "components.data.sources": ("Config", "read"),
    "components.parallelism": ("Config", "degree", "deepspeed"),
    "components.gates": ("Config", "check"),
    "components.launchers": ("Config", "launch"),
    "components.alignment.rewards": ("Config", "score"),
    "components.reliability.detectors": ("Config", "make"),
    "components.reliability.fault_kinds": ("Config", "strike"),
    "maturity.criteria": ("DIMENSION", "LEVEL", "RISK", "check"),
    "case_studies": ("RUN", "study", "EXPECT"),
}
EVERY_PLUGIN = [(package, name) for package in PLUGINS for name in plugins.names(package)]


@pytest.mark.parametrize(("package", "name"), EVERY_PLUGIN, ids=[f"{p}.{n}" for p, n in EVERY_PLUGIN])
def test_every_plug_in_has_its_docstring_and_its_named_parts(package: str, name: str) -> None:
    module = plugins.load(package, name)
    assert module.__doc__, f"{package}.{name} needs a docstring: idea, when to use, what it costs"
    missing = [part for part in PLUGINS[package] if not hasattr(module, part)]
    assert not missing


@pytest.mark.parametrize("name", [n for n in plugins.names("flows") if n != "cli"])
def test_a_flow_is_called_what_its_file_is_called(name: str) -> None:
    found = getattr(importlib.import_module(f"flows.{name}"), name)
    assert found.name == name
    assert found.description


@pytest.mark.parametrize("package", ["flows", "tasks", "components", "case_studies", "maturity"])
def test_root_packages_come_from_this_checkout(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert Path(spec.origin).is_relative_to(ROOT)


def test_reading_a_run_imports_nothing_heavy() -> None:
    code = "import sys, components.config, flows.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    heavy = {"torch", "prefect", "deepspeed", "transformers", "great_expectations", "vllm", "matplotlib"}
    assert not heavy & set(done.stdout.split())


def test_init_files_are_empty() -> None:
    ours = {*ROOT.glob("[!.]*/**/__init__.py")} - {*ROOT.glob("runs/**/__init__.py")}
    full = [str(path) for path in ours if path.read_text().strip()]
    assert full == []


def test_no_function_is_longer_than_a_screen() -> None:
    import ast

    long = []
    for folder in ("flows", "tasks", "components", "case_studies", "maturity"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 60:
                    long.append(f"{path.relative_to(ROOT)}:{node.name}")
    assert long == []
