"""DeepSpeed's universal format: every parameter and moment whole, in a file of its own, bound to no layout.

    zero/model.norm.weight/fp32.pt exp_avg.pt exp_avg_sq.pt

DeepSpeed's converter merges what the ranks hold. It has none for ZeRO 0, where one file holds everything
whole: from that one the same files are written here.
"""

from __future__ import annotations

import contextlib
import io
from argparse import Namespace
from pathlib import Path

import torch

from components.checkpoints import slices
from components.checkpoints.snapshot import TAG

KINDS = ("fp32", "exp_avg", "exp_avg_sq")
"""Masters and the two moments of Adam, as DeepSpeed names their files."""


def convert(checkpoint: Path, folder: Path, *, zero_stage: int) -> None:
    """Write the universal form of a checkpoint into a folder: twice the optimizer's bytes for a while.

    It unpickles, so the files have been compared with the manifest before.
    """
    if zero_stage == 0:
        _convert_whole(slices.the_file(checkpoint, "mp_rank_*_model_states.pt"), folder)
        return
    from deepspeed.checkpoint import ds_to_universal

    said = io.StringIO()  # it prints its progress
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        ds_to_universal.main(
            Namespace(
                input_folder=str(checkpoint / TAG),
                output_folder=str(folder),
                num_extract_workers=1,  # more would fork beside the threads of a process group
                num_merge_workers=1,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=False,
            )
        )


def read(folder: Path, name: str, kind: str) -> torch.Tensor:
    """One tensor of a parameter, one-dimensional; mapped into memory, not read."""
    content = torch.load(_place(folder, name, kind), mmap=True, weights_only=True)
    tensor: torch.Tensor = content["param"] if isinstance(content, dict) else content
    return tensor.reshape(-1)


def _convert_whole(path: Path, folder: Path) -> None:
    content = slices.load(path)
    held, module = content["optimizer"], content["module"]
    names = slices.in_order(module)
    masters = [master for group in held.get("fp32_groups", []) for master in group]
    states = held.get("optimizer_state_dict", held)["state"]
    for index, name in enumerate(names):
        found = {
            "fp32": masters[index] if masters else module[name],
            **{kind: states[index][kind] for kind in KINDS[1:]},
        }
        for kind, tensor in found.items():
            place = _place(folder, name, kind)
            place.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"param": tensor.detach().clone()}, place)


def _place(folder: Path, name: str, kind: str) -> Path:
    return folder / "zero" / name / f"{kind}.pt"
