"""Why a server did not start: the words in its log that mean something, and what to do about them."""

from __future__ import annotations

import re

CAUSES = (
    (r"No module named '?vllm", "vLLM is not installed", "run `make setup`, or install the 'serve' extra"),
    (
        r"unrecognized arguments: (?P<what>.+)",
        "vLLM does not know the flag {what}",
        "correct serving.engine_flags",
    ),
    (r"error: argument (?P<what>.+)", "vLLM does not take {what}", "correct serving.engine_flags"),
    (
        r"Unsupported CPU attention configuration: head_dim=(?P<what>\d+)",
        "vLLM on a CPU has no attention for heads of {what}",
        "choose model.hidden_size / model.num_heads as 32, 64, 96, 128 or larger",
    ),
    (
        r"Worker proc \S+ died unexpectedly",
        "a worker was ended by a signal, as when memory runs out or an instruction is not allowed",
        "read the log and `dmesg`",
    ),
    (
        r"(?i)address already in use",
        "another process took the port in between",
        "run the same command again",
    ),
    (
        r"KV cache is needed, which is larger|No available memory for the cache blocks",
        "the memory for keys and values is too small for one request of the longest length",
        "raise serving.kv_cache_megabytes or lower serving.max_model_len",
    ),
    (
        r"User-specified max_model_len \((?P<what>\d+)\) is greater",
        "the model's context is shorter than {what} tokens",
        "lower serving.max_model_len",
    ),
    (
        r"SafetensorError|HeaderTooLarge|InvalidHeader|no module or parameter named",
        "the weights do not load",
        "remove the release folder and export it again",
    ),
    (
        r"out of memory|OutOfMemoryError|Cannot allocate memory",
        "memory ran out",
        "lower serving.kv_cache_megabytes, or serve on a larger device",
    ),
)


def explain(log: str) -> str:
    """Cause and remedy in one line, from the end of a log."""
    for pattern, cause, remedy in CAUSES:
        if found := re.search(pattern, log):
            return f"{cause.format(**found.groupdict())}; {remedy}"
    return "no known cause; read the log"


def last_lines(log: str, lines: int = 6) -> str:
    """The last errors of a log, else its end; long lines are cut."""
    said = [line for line in log.splitlines() if line.strip()]
    errors = [
        line for line in said if re.search(r"\b(ERROR|\w*Error|error):?\s", line) and "Dumping" not in line
    ]
    return "\n".join(line[:200] for line in (errors or said)[-lines:])
