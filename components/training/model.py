"""The model that is trained: a Llama of the run's shape, in the format that transformers and vLLM read."""

from __future__ import annotations

from typing import Any

import torch

from components.training.config import Model

PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
END_OF_TEXT = 0
"""Id of `<|endoftext|>`, which begins, ends and pads."""


def build(model: Model, vocab_size: int, dtype: torch.dtype) -> Any:
    """A `LlamaForCausalLM` with fresh weights from torch's current seed."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.num_kv_heads or model.num_heads,
        max_position_embeddings=model.longest_position,
        tie_word_embeddings=model.tie_embeddings,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
        pad_token_id=END_OF_TEXT,
        attention_dropout=0.0,
        architectures=["LlamaForCausalLM"],
        dtype=dtype,
    )
    return with_parameters_in(transformers.LlamaForCausalLM(config), dtype)


def with_parameters_in(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Cast what is trained. Buffers stay: rotary frequencies in bf16 would turn far positions by other angles
    than those that transformers and vLLM compute for the same weights."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


def parameters(model: torch.nn.Module) -> int:
    """Weights of the model; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
