"""vLLM's server for a CPU, run as a script: every process it spawns asks for the matrix unit before using it.

Linux grants AMX to a process that asks. vLLM 0.32 relies on oneDNN to have asked, which it has not when the
first bf16 prompt is short: the worker dies of an illegal instruction. Spawned processes run this file too.
"""

from __future__ import annotations

import runpy

import torch

torch.cpu._init_amx()

if __name__ == "__main__":
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
