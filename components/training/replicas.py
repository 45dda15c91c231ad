"""Whether the ranks that should hold the same do: digests of every copy, compared every so many steps.

What is copied, and what a difference means:

    no ZeRO       weights, fp32 masters and moments, on every rank. A flipped bit in a master stays, and each
                  step adds to it; one in a bf16 weight is gone with the next step, which casts the masters.
    ZeRO 1 and 2  weights only. Each step gathers them anew from whoever owns the master: a flip spoils the
                  gradient of one step, so only what is there at the time of the look is seen.
    ZeRO 3        only the small parameters that DeepSpeed keeps whole. Shards have no copy to compare with.

A digest is the sum of a tensor's bytes, read as integers, in 64 bits: any one flipped bit changes it, two
that cancel each other do not. Ranks exchange 8 bytes each; only after a difference more.

Pattern: Replica Digest
Problem: a bit that flips on one of a thousand ranks makes no error and no jump in the loss; that rank trains
another model, and its gradients pull all the others.
Answer: compare digests every few steps and before each save, name the odd one, go back to the last save.
Trade-off: reads all copies once a look; what all ranks share a single master of is not covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from components.checkpoints import digests

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes an element."""
Slices = list[tuple[str, int, torch.Tensor]]
"""Of a tensor, from an element on: what should stand there."""


@dataclass(frozen=True)
class Divergence:
    """Copies that differ."""

    tensors: list[str]
    """Names, in the order of the model."""
    ranks: list[int]
    """Whose copy is wrong; empty when nobody can say."""
    by: str
    """`majority`, `masters` (the fp32 weights they were cast from), or `unclear`."""

    @property
    def rank(self) -> int | None:
        """The one that is wrong."""
        return self.ranks[0] if len(self.ranks) == 1 else None

    def __str__(self) -> str:
        others = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
        whose = f"rank {self.rank} holds another" if self.rank is not None else "ranks hold different"
        return f"{whose} {self.tensors[0]}{others} than it should (by {self.by})"

    @property
    def told(self) -> dict[str, Any]:
        """For an event."""
        return {"reason": str(self), "culprit": self.rank, "figures": asdict(self)}


def compare(engine: Any) -> Divergence | None:
    """What differs between the ranks' copies; all ranks call it together and get the same answer."""
    held = replicated(engine)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    if not held or ranks == 1:
        return None
    sums = _sums(list(held.values()))
    row = torch.zeros(ranks, dtype=torch.int64, device=sums.device)
    row[rank] = (sums * (2 * torch.arange(len(sums), device=sums.device) + 1)).sum()
    dist.all_reduce(row)
    if len(set(row.tolist())) == 1:
        return None
    return _explained(engine, held, sums.tolist())


def replicated(engine: Any) -> dict[str, torch.Tensor]:
    """What every rank holds a whole copy of, by name."""
    stage, named = int(engine.zero_optimization_stage()), dict(engine.module.named_parameters())
    if stage == 3:
        return {name: one.data for name, one in named.items() if one.ds_persist and one.data.numel()}
    state = digests.partition(engine) if stage == 0 else {}
    return {name: one.detach() for name, one in (named | state).items()}


def odd_ones(sums: Sequence[Sequence[int]]) -> list[int]:
    """Ranks that differ from most others in any tensor; none where there is no majority. [ranks][tensors]."""
    odd: set[int] = set()
    for column in zip(*sums, strict=True):
        value, count = Counter(column).most_common(1)[0]
        if 2 * count <= len(column):
            return []
        odd |= {rank for rank, own in enumerate(column) if own != value}
    return sorted(odd)


def _sums(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    flat = (tensor.contiguous().view(-1) for tensor in tensors)
    return torch.stack([one.view(INTEGERS[one.element_size()]).sum(dtype=torch.int64) for one in flat])


def _explained(engine: Any, held: Mapping[str, torch.Tensor], sums: list[int]) -> Divergence:
    """Which tensors, and whose fault it is: by majority, else by the masters they were cast from."""
    table: list[list[int]] = _gathered(sums)
    columns = dict(zip(held, zip(*table, strict=True), strict=True))
    differ = [name for name, column in columns.items() if len(set(column)) > 1]
    if ranks := odd_ones(table):
        return Divergence(differ, ranks, "majority")
    right: list[Slices] = _gathered(list(_cast_masters(engine, differ)))
    mine = all(_stands(held[name], start, part) for slices in right for name, start, part in slices)
    wrong = [rank for rank, is_right in enumerate(_gathered(mine)) if not is_right]
    known = 0 < len(wrong) < len(table)
    return Divergence(differ, wrong if known else [], "masters" if known else "unclear")


def _stands(held: torch.Tensor, start: int, part: torch.Tensor) -> bool:
    return bool(torch.equal(held.reshape(-1)[start : start + part.numel()].cpu(), part))


def _cast_masters(engine: Any, names: Sequence[str]) -> Iterator[tuple[str, int, torch.Tensor]]:
    """What this rank's masters say that weights hold: of ZeRO its own slices, else all."""
    named, optimizer = dict(engine.module.named_parameters()), engine.optimizer
    whole = {
        id(weight): master
        for weights, masters in zip(
            getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []), strict=False
        )
        for weight, master in zip(weights, masters, strict=True)
    }
    for name in names:
        if (weight := named.get(name)) is None:
            continue
        if hasattr(weight, "ds_tensor"):
            start = dist.get_rank() * weight.ds_tensor.numel()
            part = weight.ds_tensor.detach()[: max(0, weight.ds_numel - start)]
        elif (link := getattr(weight, "_hp_mapping", None)) is not None:
            start, part = link.lp_fragment_address.start, link.hp_fragment.detach()
        elif id(weight) in whole:
            start, part = 0, whole[id(weight)].detach().reshape(-1)
        else:
            continue
        yield name, start, part.to(weight.dtype).cpu().clone()


def _gathered(own: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone
