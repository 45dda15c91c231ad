"""What a job's events say of its course: the losses step by step, in a few points and as a picture."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from components import storage
from components.observability import events, plots


def course(folder: Path) -> dict[str, Any]:
    """First and last loss, and curves of at most 60 points: [[step, nats], ...]."""
    training = by_step(folder, "step", "loss")
    held_out = by_step(folder, "evaluate", "held_out_loss")
    return {
        "loss_first": training[0][1] if training else None,
        "loss_last": training[-1][1] if training else None,
        "loss_curve": thinned(training, 60),
        "held_out_curve": held_out,
    }


def by_step(folder: Path, kind: str, value: str) -> list[tuple[int, float]]:
    """One value of rank 0's events by step; a step that was repeated after a restart counts as done last."""
    found = {event["step"]: event[value] for event in events.read(folder, kind, rank=0)}
    return sorted(found.items())


def thinned(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most `most` points, evenly over the steps, each the mean of its piece."""
    pieces = [points[i * len(points) // most : (i + 1) * len(points) // most] for i in range(most)]
    return [(piece[-1][0], sum(v for _, v in piece) / len(piece)) for piece in pieces if piece]


def as_markdown(measured: dict[str, Any]) -> str:
    """The course of a run, for people."""
    curve, held_out = measured["loss_curve"], measured["held_out_curve"]
    picture = plots.loss_curve(curve, held_out, measured["unigram_cross_entropy"]).encode()
    rows = "\n".join(f"| {step} | {loss:.3f} |" for step, loss in held_out)
    return (
        f"![Loss by step](data:image/svg+xml;base64,{b64encode(picture).decode()})\n\n"
        f"Training loss from {measured['loss_first']:.3f} to "
        f"{curve[-1][1]:.3f} nats a token.\n\n| step | held-out loss |\n|---:|---:|\n{rows}\n\n"
        f"A unigram model has {measured['unigram_cross_entropy']:.3f}. "
        f"{measured['tokens_per_second']:,.0f} tokens a second on {measured['world_size']} ranks.\n\n"
        f"{_of_data(measured)}"
    )


def _of_data(measured: dict[str, Any]) -> str:
    """What the job was fed, in a sentence or two."""
    epochs, rows = measured["epochs"], measured["rows_per_batch"]
    sources = ", ".join(f"{name} {rows[name]} rows a batch and {epochs[name]:.2f} epochs" for name in rows)
    dropped = measured["dropped_samples"]
    return (
        f"It saw {measured['tokens_seen']:,} tokens ({sources}), {measured['padded_share']:.1%} of its slots "
        f"were padding, and it spent {measured['data_share']:.1%} of its steps waiting for data. "
        + (f"{dropped} damaged samples were left out." if dropped else "No sample was left out.")
    )


def publish_events(folder: Path, url: str) -> None:
    """Copy a job's events into the run, where reports look for them."""
    for path in sorted(folder.glob("rank-*.jsonl")):
        storage.write_bytes(storage.join(url, path.name), path.read_bytes())
