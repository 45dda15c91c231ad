"""Settings of supervised fine-tuning and reinforcement learning; light, so that reading a run is instant."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from components.plugins import Config, ManyOf


class Pairs(Config):
    """Which functions become pairs of prompt and body."""

    longest_prompt: int = Field(default=96, ge=8)
    """Tokens of signature and docstring."""

    longest_completion: int = Field(default=120, ge=8)
    """Tokens of the body, its end included."""


class Sft(Config):
    """Supervised fine-tuning on (signature, docstring) -> body pairs."""

    steps: int = Field(default=300, ge=1)
    """Optimizer steps."""

    batch_size: int = Field(default=64, ge=1)
    """Pairs in one step over all ranks."""

    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak of a linear schedule, down to a tenth."""

    warmup_steps: int = Field(default=10, ge=0)
    """Steps up to the peak."""

    checkpoint_every: int = Field(default=150, ge=1)
    """Steps between checkpoints; the last step is always saved."""


class Rl(Config):
    """Reinforcement learning with a verifiable reward under a KL term."""

    steps: int = Field(default=50, ge=1)
    """Updates."""

    prompts_per_step: int = Field(default=16, ge=1)
    """Prompts sampled for one update over all ranks."""

    samples_per_prompt: int = Field(default=8, ge=2)
    """Completions of one prompt; each has the mean of the others as its baseline."""

    rewards: Annotated[dict[str, Config], ManyOf("components.alignment.rewards")] = Field(
        default={"parses": {}, "near_human_size": {}, "uses_arguments": {}},
        validate_default=True,
        min_length=1,
    )
    """What a completion is paid for, by name; their mean by weight is the reward."""

    learning_rate: float = Field(default=5e-4, gt=0)
    """Constant after the warm-up."""

    warmup_steps: int = Field(default=5, ge=0)
    """Updates up to the full learning rate."""

    kl_weight: float = Field(default=0.08, ge=0)
    """Price of one nat of divergence from the SFT policy, per token."""

    max_new_tokens: int = Field(default=96, ge=8)
    """Longest completion, its end included; one that has not ended by then is worth nothing."""

    checkpoint_every: int = Field(default=25, ge=1)
    """Updates between checkpoints; the last one is always saved."""

    @field_validator("rewards")
    @classmethod
    def _something_is_paid(cls, value: dict[str, Config]) -> dict[str, Config]:
        if not value:
            raise ValueError("a policy that is paid for nothing learns nothing; name at least one reward")
        return value


class Evaluation(Config):
    """What before and after are compared on."""

    prompts: int = Field(default=256, ge=2)
    """Held-out prompts, the same ones for both policies; one completion each at temperature 1."""

    samples_shown: int = Field(default=6, ge=0)
    """Completions of the same prompt by both policies that are kept for the report."""


class Alignment(Config):
    """From a base model to a policy worth deploying."""

    pairs: Pairs = Pairs()
    sft: Sft = Sft()
    rl: Rl = Rl()
    evaluation: Evaluation = Evaluation()
