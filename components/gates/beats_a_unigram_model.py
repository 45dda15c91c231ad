"""The model predicts held-out tokens better than their bare frequencies do.

When to use: for every pre-trained model. A model that has learned no context, or whose run diverged to a
finite constant, is no better than a table of counts. What it costs: nothing; both figures are already there.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins
from components.checkpoints import manifest
from components.data import manifest as datasets
from components.errors import DataError
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """How much better."""

    margin_nats: float = Field(default=0.5, ge=0)
    """Nats a token by which the held-out loss must be below that of the unigram model."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare the held-out loss with the bar that the data set's manifest holds."""
    if subject.shards is None:
        raise DataError("the data set is not here, and its manifest holds the bar")
    loss = manifest.read(subject.path).held_out_loss
    bar = datasets.read(str(subject.shards)).unigram_cross_entropy
    return Verdict(
        gate="beats_a_unigram_model",
        passed=bar - loss >= config.margin_nats,  # false for NaN too
        reason=f"held-out loss {loss:.3f}, unigram model {bar:.3f}: better by {bar - loss:.3f} nats a token, "
        f"needs {config.margin_nats}",
        figures={"loss": loss, "unigram_cross_entropy": bar, "margin_nats": bar - loss},
    )
