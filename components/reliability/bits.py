"""Bits of numbers in memory: what a cosmic ray or a worn cell changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def flip(tensor: torch.Tensor, index: int, bit: int) -> None:
    """Flip one bit of one element in place. Bits count from the lowest; the sign is left alone."""
    import torch

    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    if not 0 <= bit < 8 * tensor.element_size() - 1:
        raise ValueError(f"bit {bit} of {tensor.dtype}: choose 0 to {8 * tensor.element_size() - 2}")
    cells = tensor.detach().view(-1).view(integers)
    cells[index] ^= 1 << bit


def highest_exponent_bit(tensor: torch.Tensor) -> int:
    """The one that makes an ordinary number as large as its format can hold."""
    return int(8 * tensor.element_size() - 2)
