"""Nothing phones home, fetches from a hub unasked, or scolds: the environment that makes it so."""

from __future__ import annotations

import os

ENVIRONMENT = {
    "DO_NOT_TRACK": "1",  # Prefect's client, vLLM
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "TOKENIZERS_PARALLELISM": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",  # a component's line outside a flow is no mistake
}


def apply() -> None:
    """Set what the user has not set; a hub is reached only with HF_HUB_OFFLINE=0 in the environment."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
