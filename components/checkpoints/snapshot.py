"""One rank's state copied in memory, while the next forward and backward pass go on.

DeepSpeed says what belongs into its files; instead of writing them, each tensor is copied once, whoever
shares it. Only an optimizer's step changes tensors, so `take` notes which and `fill` copies them beside
training, before that step. The copies of one save are the buffers of the next: only the first one pays for
fresh memory. CheckFreq (Mohan and others, FAST'21) overlaps the copy in the same way.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from components.checkpoints import digests

TAG = "deepspeed"
UNIVERSAL = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
"""Lets `deepspeed.checkpoint.ds_to_universal` convert it for another number of ranks."""

Key = tuple[int, torch.Size, torch.dtype]


@dataclass(frozen=True)
class Snapshot:
    """What one rank writes."""

    states: dict[str, Any]
    """DeepSpeed's files: path in the checkpoint, and the state in it."""
    partition: dict[str, torch.Tensor]
    """The fp32 masters and moments among them, by the names that the manifest uses."""
    weights: dict[str, torch.Tensor]
    """The model's, on rank 0; elsewhere none."""
    random: dict[str, Any]


class Memory:
    """Copies of tensors, kept from one save to the next. Not for two saves at once."""

    def __init__(self) -> None:
        self._buffers: dict[Key, torch.Tensor] = {}
        self._fresh: dict[Key, torch.Tensor] = {}
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def bytes(self) -> int:
        """Memory that the copies take."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, engine: Any, staged: Path, *, rank: int) -> Snapshot:
        """A rank's state in tensors that `fill` has yet to copy; all ranks together, between two steps."""
        self._fresh, self._pending = {}, []
        held = weights_of(engine)
        with _handed_over(engine) as files:
            engine.save_checkpoint(str(staged), tag=TAG, client_state=dict(UNIVERSAL), save_latest=False)
        if rank == 0:
            for script in staged.glob("*.py"):  # DeepSpeed leaves one; a checkpoint holds no code
                script.unlink()
        snapshot = Snapshot(
            states={str(Path(path).relative_to(staged)): self._tree(state) for path, state in files.items()},
            partition={name: self._tensor(held) for name, held in digests.partition(engine).items()},
            weights={name: self._tensor(held) for name, held in held.items()} if rank == 0 else {},
            random=random_state(),
        )
        self._buffers, self._fresh = self._fresh, {}
        return snapshot

    def fill(self) -> None:
        """Copy what was taken; in any thread, before anything of it changes."""
        for buffer, source in self._pending:
            buffer.copy_(source, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._pending = []

    def _tree(self, state: Any) -> Any:
        """A state with copies in place of its tensors; two that share memory share it again."""
        return copy.deepcopy(state, {id(tensor): self._tensor(tensor) for tensor in _tensors(state)})

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        source = tensor.detach()
        key = (source.data_ptr(), source.shape, source.dtype)
        if source.numel() and key in self._fresh:
            return self._fresh[key]
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        self._pending.append((buffer, source))
        self._fresh[key] = buffer
        return buffer


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


@contextmanager
def _handed_over(engine: Any) -> Iterator[dict[str, Any]]:
    """DeepSpeed's files by path, in place of being written; the states in them are the live ones."""
    files: dict[str, Any] = {}
    writer = engine.checkpoint_engine
    writer.save = lambda state_dict, path: files.__setitem__(path, state_dict)
    try:
        yield files
    finally:
        del writer.save


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(state):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from _tensors(value)
