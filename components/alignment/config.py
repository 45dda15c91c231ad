"""Settings of supervised fine-tuning and reinforcement learning; light, so that reading a run is instant."""

from __future__ import annotations

from pydantic import Field

from components.plugins import Config


class Sft(Config):
    """Supervised fine-tuning on (signature, docstring) -> body pairs."""

    steps: int = Field(default=400, ge=1)
    """Optimizer steps."""

    batch_size: int = Field(default=64, ge=1)
    """Pairs in one step over all ranks."""

    learning_rate: float = Field(default=3e-3, gt=0)
    """Start of a linear schedule down to a tenth."""


class Rl(Config):
    """Reinforcement learning with a verifiable reward under a KL term."""

    steps: int = Field(default=60, ge=1)
    """Updates."""

    prompts_per_step: int = Field(default=16, ge=1)
    """Prompts sampled for one update over all ranks."""

    samples_per_prompt: int = Field(default=8, ge=2)
    """Completions of one prompt; their mean is the baseline."""

    learning_rate: float = Field(default=5e-4, gt=0)
    """Constant after a five-step warm-up."""

    kl_weight: float = Field(default=0.03, ge=0)
    """Price of one nat of divergence from the SFT policy, per token."""

    max_new_tokens: int = Field(default=96, ge=8)
    """Longest completion."""


class Alignment(Config):
    """From a base model to a policy worth deploying."""

    sft: Sft = Sft()
    rl: Rl = Rl()
