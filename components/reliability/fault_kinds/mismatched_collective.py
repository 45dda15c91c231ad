"""The rank brings a tensor of another shape to one all_reduce, as with a parameter that others do not have.

The recorder then shows this file's line for it, as it would show that of a branch which others do not take.
"""

from __future__ import annotations

from typing import Any

from components import plugins

POINT = "collective"


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config, target: Any) -> None:
    """The next all_reduce of this process has as many numbers again and one more."""
    import torch
    import torch.distributed as dist

    real = dist.all_reduce

    def mismatched(tensor: Any, *arguments: Any, **options: Any) -> Any:
        dist.all_reduce = real
        larger = torch.cat([tensor.flatten(), tensor.flatten(), tensor.new_ones(1)])
        return real(larger, *arguments, **options)

    dist.all_reduce = mismatched
