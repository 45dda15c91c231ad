"""Which part of which parameter lies where in a rank's optimizer: in DeepSpeed's files, and in a live engine.

An optimizer of DeepSpeed holds few flat tensors. Under ZeRO 1 and 2 a group of parameters is laid end to end
and cut into one piece a rank, wherever the cuts fall; under ZeRO 3 each parameter is cut into equal pieces,
the last one filled up with whatever lay in memory; without ZeRO every rank holds every parameter whole.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from components.checkpoints.snapshot import TAG
from components.errors import CheckpointCorrupt

Whole = Callable[[str], torch.Tensor]
"""A parameter's tensor, one-dimensional, by the parameter's name."""


class Slice(NamedTuple):
    """Elements `start` to `start + length` of a parameter, that begin at `place` in a flat tensor."""

    name: str
    start: int
    place: int
    length: int


class Flat(NamedTuple):
    """What one flat tensor consists of; between and behind the slices is padding that nobody reads."""

    size: int
    slices: tuple[Slice, ...]

    def of(self, whole: Whole, padded_as: torch.Tensor | None = None) -> torch.Tensor:
        """The flat tensor, from whole parameters; padding is zeros, or what this other tensor has there."""
        flat = torch.zeros(self.size, dtype=torch.float32)
        if padded_as is not None:
            flat[: padded_as.numel()] = padded_as
        for one in self.slices:
            flat[one.place : one.place + one.length] = whole(one.name)[one.start : one.start + one.length]
        return flat


class Saved(NamedTuple):
    """The optimizer of one rank as its file has it."""

    flats: list[Flat]
    tensors: list[dict[str, torch.Tensor]]
    """Of each flat one: `fp32`, `exp_avg`, `exp_avg_sq` as they are in the file; without ZeRO none."""
    step: torch.Tensor
    """Optimizer steps taken: a scalar, as the optimizer holds it."""


def of_files(folder: Path, *, world_size: int, zero_stage: int) -> Iterator[Saved]:
    """Rank by rank. It unpickles, so the files have been compared with the manifest before."""
    taken: Counter[str] = Counter()
    for rank in range(world_size):
        mine = f"*zero_pp_rank_{rank}_mp_rank_*"
        content = load(
            the_file(folder, f"{mine}_optim_states.pt" if zero_stage else "mp_rank_*_model_states.pt")
        )
        if zero_stage == 0:
            names, states = in_order(content["module"]), _states(content["optimizer"])
            flats, masters = [_alone(name, content["module"][name].numel()) for name in names], []
        elif zero_stage == 3:
            held = content["optimizer_state_dict"]
            states, masters = _states(held), held["fp32_flat_groups"]
            shapes = [
                {name: math.prod(shape) for name, shape in group.items()}
                for group in load(the_file(folder, f"{mine}_model_states.pt"))["param_shapes"]
            ]
            flats = [equal_parts(group, rank, world_size) for group in shapes]
        else:
            held = content["optimizer_state_dict"]
            states, masters = held["base_optimizer_state"]["state"], held["single_partition_of_fp32_groups"]
            mappings = held["param_slice_mappings"]
            flats = [
                _end_to_end(mapping, states[group]["exp_avg"].numel(), taken)
                for group, mapping in enumerate(mappings)
            ]
        tensors = [{**states[index], "fp32": master} for index, master in enumerate(masters)]
        yield Saved(flats, tensors, next(iter(states.values()))["step"])


def of_engine(engine: Any) -> Iterator[tuple[torch.Tensor, Flat]]:
    """This rank's fp32 masters, in the order in which the optimizer holds them, and what they consist of."""
    names, optimizer = engine.param_names, engine.optimizer
    stage = int(engine.zero_optimization_stage())
    if stage == 0:
        for parameter, master in masters_of_all(engine):
            yield master, _alone(names[parameter], parameter.numel())
    elif stage == 3:
        for flat, group in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
            sizes = {names[parameter]: parameter.ds_numel for parameter in group}
            yield flat, equal_parts(sizes, dist.get_rank(), dist.get_world_size())
    else:
        groups = zip(optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, strict=True)
        for flat, group in groups:
            here = [(names[one], one._hp_mapping) for one in group if one._hp_mapping is not None]
            slices = (
                Slice(
                    name,
                    its.lp_fragment_address.start,
                    its.hp_fragment_address.start,
                    its.hp_fragment.numel(),
                )
                for name, its in here
            )
            yield flat, Flat(flat.numel(), tuple(slices))


def masters_of_all(engine: Any) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Without ZeRO: each parameter and its fp32 master; in fp32 they are one."""
    if engine.bfloat16_enabled():
        pairs = zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups, strict=True)
        for parameters, masters in pairs:
            yield from zip(parameters, masters, strict=True)
    else:
        for group in engine.optimizer.param_groups:
            yield from ((parameter, parameter) for parameter in group["params"])


def in_order(module: Mapping[str, torch.Tensor]) -> list[str]:
    """A model's parameters in the order of the optimizer: those that decay first. A tied one has one name."""
    own: dict[Any, str] = {}
    for name, tensor in module.items():
        own.setdefault((tensor.untyped_storage().data_ptr(), tensor.storage_offset()), name)
    return sorted(own.values(), key=lambda name: module[name].ndim <= 1)


def the_file(folder: Path, pattern: str) -> Path:
    """The one file of DeepSpeed's that has this name, in a checkpoint's folder."""
    for path in (folder / TAG).glob(pattern):
        return path
    raise CheckpointCorrupt(f"{folder}/{TAG} has no file {pattern}; use an earlier checkpoint")


def load(path: Path) -> Any:
    """One of DeepSpeed's files, its tensors mapped into memory instead of read."""
    return torch.load(path, map_location="cpu", mmap=True, weights_only=False)


def _states(held: Any) -> dict[int, Any]:
    """Torch's own optimizer state, beneath what DeepSpeed wraps it in."""
    inner = held.get("optimizer_state_dict", held)
    states: dict[int, Any] = inner["state"]
    return states


def _alone(name: str, size: int) -> Flat:
    return Flat(size, (Slice(name, 0, 0, size),))


def equal_parts(sizes: Mapping[str, int], rank: int, world_size: int) -> Flat:
    place, slices = 0, []
    for name, size in sizes.items():
        part = math.ceil(size / world_size)
        start = min(rank * part, size)
        slices.append(Slice(name, start, place, min(part, size - start)))
        place += part
    return Flat(place, tuple(slices))


def _end_to_end(mapping: Mapping[str, Any], size: int, taken: Counter[str]) -> Flat:
    """`taken` is how much of each parameter the ranks before hold."""
    slices = []
    for name, address in mapping.items():
        slices.append(Slice(name, taken[name], address.start, address.numel))
        taken[name] += address.numel
    return Flat(size, tuple(slices))
