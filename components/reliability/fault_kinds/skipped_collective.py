"""The rank leaves out one all_reduce and goes on, as behind a branch that only its own data takes."""

from __future__ import annotations

from typing import Any

from components import plugins

POINT = "collective"


class Config(plugins.Config):
    """Nothing to choose."""


def strike(config: Config, target: Any) -> None:
    """The next all_reduce of this process returns without having been called; those after it are real."""
    import torch.distributed as dist

    real = dist.all_reduce

    def skipped(tensor: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("async_op"):  # somebody will wait for what it returns
            return real(tensor, *arguments, **options)
        dist.all_reduce = real
        return None

    dist.all_reduce = skipped
