"""Settings of the model and of pre-training; light, so that reading a run does not import torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from components.checkpoints.config import Config as Checkpoints
from components.data.mending.quarantine import Policy
from components.data.packing import Config as Packing
from components.errors import ConfigError
from components.plugins import Config
from components.training.guard import Config as Guard


class Model(Config):
    """A Llama: the shape, not the weights. Defaults have about one million parameters."""

    hidden_size: int = Field(default=128, ge=8)
    """Width of the residual stream."""

    num_layers: int = Field(default=4, ge=1)
    """Transformer blocks."""

    num_heads: int = Field(default=2, ge=1)
    """Attention heads; must divide `hidden_size`."""

    num_kv_heads: int | None = Field(default=None, ge=1)
    """Heads of keys and values (grouped-query attention); None means as many as `num_heads`."""

    intermediate_size: int = Field(default=320, ge=8)
    """Width of the feed-forward block."""

    context_length: int = Field(default=256, ge=16)
    """Tokens in one training sequence."""

    tie_embeddings: bool = True
    """Share the input embedding with the output layer."""

    @property
    def longest_position(self) -> int:
        """Positions the model admits: more than it trains on, so that prompts and answers fit together."""
        return 4 * self.context_length

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_heads={self.num_heads}; "
                "change one of them"
            )
        if self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        return self


class Training(Config):
    """Pre-training: how long, how fast, how often saved."""

    steps: int = Field(default=1000, ge=1)
    """Optimizer steps."""

    batch_size: int = Field(default=8, ge=1)
    """Sequences in one step over all ranks."""

    packing: Packing = Packing()
    """How documents become sequences of `model.context_length` tokens."""

    mixture: dict[str, Annotated[float, Field(gt=0)]] = Field(default={})
    """Proportions of the parts of a mixture source in every batch, by name; none: all as they come."""

    loader_workers: int = Field(default=0, ge=0, le=64)
    """Processes beside each rank that read batches ahead; 0 reads in the rank itself, when it needs one."""

    damaged_samples: Policy = Policy()
    """What to do about samples that are not what was written."""

    learning_rate: float = Field(default=6e-3, gt=0)
    """Peak of the schedule: linear warm-up, then cosine down to a tenth."""

    warmup_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps that warm up."""

    weight_decay: float = Field(default=0.1, ge=0)
    """Decay of weight matrices."""

    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient over all parameters."""

    gradients: Guard = Guard()
    """Which gradients never reach the optimizer."""

    compare_replicas_every: int = Field(default=50, ge=1)
    """Steps between comparisons of what all ranks hold a copy of; before every save as well."""

    precision: str = Field(default="bf16", pattern="^(bf16|fp32)$")
    """Number format of weights and activations; the optimizer keeps fp32 masters."""

    checkpoint_every: Annotated[int, Field(ge=1)] | Literal["auto"] = 250
    """Steps between checkpoints, or `auto`: by Daly's formula from the measured cost of a save and the
    failure rate in `checkpoints`. The last step is always saved."""

    checkpoints: Checkpoints = Checkpoints()
    """How they are saved."""

    evaluate_every: int = Field(default=250, ge=1)
    """Steps between evaluations on held-out tokens."""

    held_out_sequences: int = Field(default=64, ge=1)
    """Sequences of the fixed held-out batch."""

    timeout_seconds: float = Field(default=900.0, gt=0)
    """Longest wait for other ranks in one collective; then it is an error, not a hang. Such an error names
    nobody, so this is longer than every limit of the watchdog: `components/reliability/timeouts.py`."""

    def batch_size_per_rank(self, ranks: int) -> int:
        """Sequences of a step that each rank computes; ConfigError where they would not be equally many."""
        if self.batch_size % ranks:
            fits = [str(count) for count in range(1, self.batch_size + 1) if self.batch_size % count == 0]
            raise ConfigError(
                f"training.batch_size={self.batch_size} does not divide over {ranks} ranks; "
                f"it does over {', '.join(fits)}: pass --set profile.processes=N (a run keeps its batch size)"
            )
        return self.batch_size // ranks
