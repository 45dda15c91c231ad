"""What a model that only counts tokens would score: the bar below which nothing has been learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


def cross_entropy(train_counts: NDArray[Any], held_out_counts: NDArray[Any]) -> float:
    """Nats per held-out token under the train split's frequencies, each count raised by one."""
    import numpy as np

    smoothed = train_counts + 1
    nats = -np.log(smoothed / smoothed.sum())
    return float((held_out_counts * nats).sum() / held_out_counts.sum())
