"""What alignment changed, for people: a table of before and after, and completions side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TITLES = {
    "reward": "reward",
    "parse_share": "parses",
    "substance_share": "has substance",
    "distinct_share": "distinct",
    "ended_share": "ends by itself",
    "tokens": "tokens",
    "nodes": "syntax nodes of what parses",
    "human_nll": "human body, nats a token",
    "kl_per_token": "drift, nats a token",
}


def as_markdown(compared: Mapping[str, Any], shown: int = 3) -> str:
    """The whole comparison."""
    before, after, rise = compared["before"], compared["after"], compared["rise"]
    rows = [
        f"| {title} | {_text(before[name])} | {_text(after[name])} | {_spread(rise.get(name))} |"
        for name, title in TITLES.items()
    ]
    head = [
        f"On {compared['prompts']} held-out prompts, temperature 1, 95 % intervals.",
        "",
        "| | before | after | change |",
        "|---|---:|---:|---:|",
    ]
    return "\n".join([*head, *rows, *map(_side_by_side, compared["samples"][:shown])])


def _text(value: Any) -> str:
    return f"{value['mean'] if isinstance(value, Mapping) else value:.3f}"


def _spread(value: Any) -> str:
    return f"{value['mean']:+.3f} ({value['low']:+.3f} to {value['high']:+.3f})" if value else ""


def _side_by_side(sample: Mapping[str, Any]) -> str:
    parts = [f"{sample['prompt']}{sample[moment]}" for moment in ("before", "after")]
    fences = [f"```python\n{part.replace('```', '`` `')}\n```" for part in parts]
    return f"\nBefore:\n\n{fences[0]}\n\nAfter:\n\n{fences[1]}"
