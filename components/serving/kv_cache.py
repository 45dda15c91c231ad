"""How many tokens a memory for keys and values holds: exact arithmetic on the model's own config.json.

A model's size in parameters is a poor guide: Qwen2.5-14B has twice the parameters of the 7B and needs 3.4
times the memory a token, Llama-3-70B has 8.8 times those of the 8B and needs 2.5 times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MEBIBYTE = 1 << 20
BYTES = {"fp32": 4, "bf16": 2}


def bytes_per_token(model: Mapping[str, Any], precision: str, *, tensor_parallel: int = 1) -> int:
    """Bytes that one token holds on one rank, over all layers."""
    layers, width = int(model["num_hidden_layers"]), BYTES[precision]
    if model.get("kv_lora_rank"):  # latent attention: one vector a layer, the same on every rank
        return layers * int(model["kv_lora_rank"] + model["qk_rope_head_dim"]) * width
    queries = int(model["num_attention_heads"])
    heads = max(1, int(model.get("num_key_value_heads") or queries) // tensor_parallel)
    size = int(model.get("head_dim") or model["hidden_size"] // queries)
    return layers * 2 * heads * size * width


def tokens_held(budget_bytes: int, token_bytes: int, *, block_size: int) -> int:
    """Tokens that fit, in whole blocks."""
    return budget_bytes // (token_bytes * block_size) * block_size


def bytes_needed(tokens: int, token_bytes: int, *, block_size: int) -> int:
    """Memory that one request of so many tokens needs; the engine keeps one block for itself."""
    return (math.ceil(tokens / block_size) + 1) * block_size * token_bytes
