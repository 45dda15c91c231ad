"""The held-out loss is not worse than that of the validated checkpoint before, by more than a bound.

Idea: a run that went off its course writes intact files and finite weights, and resuming from them wastes all
that follows. When to use: in pre-training, where each checkpoint should be better than the last or nearly so;
not where a stage trains for something other than this loss. What it costs: nothing, both figures are there.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.checkpoints import manifest
from components.checkpoints.manifest import Manifest
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """How much worse is still noise."""

    bound_nats: float = Field(default=0.25, ge=0)
    """Nats a token by which the loss may have risen; a step at full learning rate can cost a tenth."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare two losses of one batch."""
    content, previous = manifest.read(subject.path), subject.previous
    loss = content.held_out_loss
    if previous is None or not _comparable(content, previous.manifest):
        why = (
            "no validated checkpoint before"
            if previous is None
            else f"{previous.name} was measured on other data"
        )
        return Verdict(
            gate="loss_is_no_worse",
            passed=loss == loss,  # NaN is worse than anything
            reason=f"held-out loss {loss:.4f}; {why} to compare with",
            figures={"loss": loss, "bound_nats": config.bound_nats},
        )
    was = previous.manifest.held_out_loss
    return Verdict(
        gate="loss_is_no_worse",
        passed=loss - was <= config.bound_nats,  # false for NaN too
        reason=f"held-out loss {loss:.4f}, {was:.4f} in {previous.name}: {loss - was:+.4f} nats a token, "
        f"{config.bound_nats:+g} is allowed",
        figures={"loss": loss, "loss_before": was, "rise_nats": loss - was, "bound_nats": config.bound_nats},
    )


def _comparable(content: Manifest, before: Manifest) -> bool:
    """The same data set, and as much of it."""
    ours, theirs = content.held_out, before.held_out
    return content.shards_digest == before.shards_digest and (ours.sequences, ours.sequence_length) == (
        theirs.sequences,
        theirs.sequence_length,
    )
