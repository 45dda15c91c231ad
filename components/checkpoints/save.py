"""Saving a checkpoint from all ranks at once: digests first, then files, then the manifest, then the name.

A crash at any point leaves either nothing under a name that readers look at, or a whole checkpoint.
DeepSpeed's `latest` file is never written: it appears before other ranks have finished.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from components import storage
from components.checkpoints import digests, manifest, state
from components.checkpoints.manifest import Manifest

logger = logging.getLogger(__name__)

TAG = "deepspeed"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
UNIVERSAL = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
"""Lets `deepspeed.checkpoint.ds_to_universal` convert it for another number of ranks."""


def save(engine: Any, draft: Manifest, *, folder: str, scratch: Path, tokenizer: Path) -> str:
    """Save under `folder`; every rank gets the checkpoint's URL.

    `scratch` is a local folder that all ranks see, `tokenizer` a data set or an earlier checkpoint.
    """
    staged = scratch / f"step-{draft.step:06d}.partial"
    if dist.get_rank() == 0:
        for left in scratch.glob("step-*.partial"):  # of an attempt that died while saving
            shutil.rmtree(left)
        (staged / "random").mkdir(parents=True)
    weights = weights_of(engine)
    ours = (digests.of_tensors(weights), digests.of_partition(engine))
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, ours)  # also the barrier behind the fresh folder
    _write_rank(engine, staged)
    if dist.get_rank() == 0:
        _write_model(engine, weights, staged, tokenizer)
    _flush(staged)
    dist.barrier()
    known = {"tensors": gathered[0][0], "partitions": [partition for _, partition in gathered]}
    url = [_publish(staged, draft.model_copy(update=known), folder) if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(url)
    return url[0]


def weights_of(engine: Any) -> dict[str, torch.Tensor]:
    """The tensors that go to disk: tied ones once; under ZeRO 3 gathered from all ranks, on rank 0."""
    if engine.zero_optimization_partition_weights():
        found = engine._zero3_consolidated_16bit_state_dict() or {}
    else:
        found = engine.module.state_dict()
    if engine.module.config.tie_word_embeddings:
        found = {name: tensor for name, tensor in found.items() if name != "lm_head.weight"}
    return {name: tensor.detach().contiguous() for name, tensor in found.items()}


def random_state() -> dict[str, Any]:
    """The generators of this rank, as JSON."""
    kind, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": [kind, np.asarray(keys).tolist(), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    return state


def _write_rank(engine: Any, staged: Path) -> None:
    """What every rank writes: its part of DeepSpeed's state, its generators."""
    engine.save_checkpoint(str(staged), tag=TAG, client_state=dict(UNIVERSAL), save_latest=False)
    path = staged / "random" / f"rank-{dist.get_rank():05d}.json"
    path.write_text(json.dumps(random_state()))


def _write_model(engine: Any, weights: dict[str, torch.Tensor], staged: Path, tokenizer: Path) -> None:
    """What rank 0 writes: the model as transformers and vLLM load it."""
    from safetensors.torch import save_file

    for script in staged.glob("*.py"):  # DeepSpeed leaves one; a checkpoint holds no code
        script.unlink()
    save_file(weights, staged / "model.safetensors", metadata={"format": "pt"})
    engine.module.config.save_pretrained(staged)
    engine.module.generation_config.save_pretrained(staged)
    for name in TOKENIZER:
        shutil.copyfile(tokenizer / name, staged / name)


def _flush(staged: Path) -> None:
    """To the device: a rename that outlives its content would publish holes.

    Ranks flush at once, so a file of rank 0 may go (the script above) while another rank comes to it.
    """
    for path in staged.rglob("*"):
        if path.is_file():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                os.fsync(file.fileno())


def _publish(staged: Path, draft: Manifest, folder: str) -> str:
    """Manifest, announcement, rename: in this order."""
    manifest.seal(staged, draft)
    url = storage.join(folder, free_name(folder, draft.step))
    state.commit(url, manifest.digest(staged))
    storage.publish_folder(staged, url, last=manifest.NAME)
    logger.info("checkpoint of step %d: %s", draft.step, url)
    return url


def free_name(folder: str, step: int) -> str:
    """`step-000400`, or `step-000400-2` when an attempt that was rolled back has already saved that step."""
    taken, name, attempt = set(storage.listing(folder)), f"step-{step:06d}", 1
    while (candidate := name if attempt == 1 else f"{name}-{attempt}") in taken:
        attempt += 1
    return candidate
