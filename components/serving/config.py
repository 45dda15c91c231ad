"""Settings of the server and of its load test; light, so that reading a run is instant."""

from __future__ import annotations

from pydantic import Field

from components.plugins import Config


class Serving(Config):
    """How the model is served and what the load test sends."""

    precision: str = Field(default="fp32", pattern="^(bf16|fp32)$")
    """Number format of the served weights."""

    keep_running: bool = False
    """Leave the promoted server up after the flow; otherwise it is stopped once it has been measured."""
