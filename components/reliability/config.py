"""How a job is watched: what a profile says of it, and the detectors that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from components import plugins
from components.jobs import Job
from components.plugins import ManyOf, load
from components.reliability.elastic import Config as Elastic
from components.reliability.elastic import Supply
from components.reliability.finding import Detector
from components.reliability.preemption import Config as Preemption
from components.reliability.watchdog import Limits

DETECTORS = "components.reliability.detectors"


class Reliability(plugins.Config):
    """When a job counts as standing still, what else is looked for, and how often it is started again."""

    limits: Limits = Limits()

    preemption: Preemption = Preemption()
    """How a job hears that its machine is about to be taken."""

    elastic: Elastic | None = None
    """Let the number of ranks follow the capacity there is; none: always as many as the profile says.
    Pre-training alone moves: what a rank of another stage draws depends on how many there are."""

    detectors: Annotated[dict[str, plugins.Config], ManyOf(DETECTORS)] = Field(
        default={"rank_reports": {}, "loss_spikes": {}, "data_stalls": {}}, validate_default=True
    )
    """By name, each with its settings; one file each in `components/reliability/detectors/`. By default those
    that were quiet on every recording of healthy ranks; `stragglers` says why it is not among them."""

    def supply(self, allowed: Sequence[int] = ()) -> Supply:
        """What the supervisor asks before a job that can run with these numbers of ranks; none: only one."""
        return Supply(self.preemption, self.elastic if allowed else None, allowed)

    def detectors_of(self, job: Job) -> list[Detector]:
        """Anew for each attempt."""
        return [load(DETECTORS, name).make(config, job.processes) for name, config in self.detectors.items()]
