"""Load a checkpoint as any user would, ask it for one prediction, print what came: the program of a gate.

`python -m components.checkpoints.first_answer CHECKPOINT`
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from components.errors import CheckpointCorrupt

TEXT = "def add(left, right):\n    return left + right\n"


def of(checkpoint: Path) -> dict[str, Any]:
    """Sizes and seconds; CheckpointCorrupt when a tensor is missing, left over, or misshapen.

    Transformers itself only warns of those, and starts with random numbers in the place of what is missing.
    """
    import torch
    import transformers

    started = time.perf_counter()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, local_files_only=True, use_safetensors=True, output_loading_info=True
    )
    _refuse(said)
    loaded = time.perf_counter()
    tokens = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits
    if not bool(torch.isfinite(logits).all()):
        raise CheckpointCorrupt(f"logits of shape {list(logits.shape)} hold NaN or infinity")
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens": tokens.shape[1],
        "vocabulary": logits.shape[2],
        "seconds_to_load": round(loaded - started, 3),
        "seconds_to_answer": round(time.perf_counter() - loaded, 3),
    }


def _refuse(said: dict[str, Any]) -> None:
    wrong = {
        kind: sorted(map(str, names)) for kind, names in said.items() if names and kind.endswith("_keys")
    }
    for kind, names in wrong.items():
        raise CheckpointCorrupt(f"{len(names)} {kind.replace('_', ' ')}, first '{names[0]}'")


def main() -> None:
    """Print the answer as JSON."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.stdout.write(json.dumps(of(Path(sys.argv[1]))) + "\n")


if __name__ == "__main__":
    main()
