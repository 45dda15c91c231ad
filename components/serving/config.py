"""Settings of the server and of its load test; light, so that reading a run is instant."""

from __future__ import annotations

from pydantic import Field

from components.plugins import Config

PROMPTS = (
    "def add(a, b):\n    return",
    "import os\nimport sys\n",
    "class Stack:\n    def __init__(self",
    "for index, item in enumerate(",
    'if __name__ == "__main__":\n',
    "try:\n    value = int(text)\nexcept",
    "def read(path):\n    with open(path) as",
    "# Return the largest of two numbers.\n",
)


class Load(Config):
    """Traffic of the load test: requests arrive at random times, whether or not earlier ones are answered."""

    requests: int = Field(default=40, ge=1)
    """How many are sent."""

    rate_per_second: float = Field(default=8.0, gt=0)
    """Mean arrivals a second; the gaps are exponential."""

    prompt_tokens: int = Field(default=32, ge=1)
    """Length of each prompt; every prompt is new to the server's cache."""

    output_tokens: int = Field(default=16, ge=1)
    """Tokens asked for, and given, by each request."""

    timeout_seconds: float = Field(default=30.0, gt=0)
    """A request that takes longer counts as an error."""


class Serving(Config):
    """How the model is served, what it must answer and what the load test sends."""

    precision: str = Field(default="fp32", pattern="^(bf16|fp32)$")
    """Number format of the served weights."""

    keep_running: bool = False
    """Leave the promoted server up after the flow; otherwise it is stopped once it has been measured."""

    max_model_len: int | None = Field(default=None, ge=8)
    """Longest prompt plus answer in tokens; default: the model's own context."""

    kv_cache_megabytes: int | None = Field(default=None, ge=1)
    """Memory for keys and values (MiB); default: 64 on a CPU, what the model leaves free on a GPU."""

    start_seconds: float = Field(default=300.0, gt=0)
    """A server that is not ready by then has failed to start."""

    engine_flags: tuple[str, ...] = ()
    """More flags for vLLM, word by word."""

    prompts: tuple[str, ...] = Field(default=PROMPTS, min_length=1)
    """What the trainer's model and the server must answer alike."""

    answer_tokens: int = Field(default=16, ge=1)
    """Length of those answers."""

    load: Load = Load()
    """Traffic of the load test."""
