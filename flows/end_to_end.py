"""Raw text to a served, scored model: the five links in a row, then the report, whatever happened."""

from __future__ import annotations

from prefect import flow

from components.config import Profile, Run
from components.records import Record
from flows.align import align
from flows.assess import assess
from flows.deploy import deploy
from flows.pretrain import pretrain
from flows.shard_dataset import shard_dataset
from tasks.date_run import date_run


@flow(name="end_to_end", log_prints=False)
def end_to_end(run: Run, profile: Profile) -> Record:
    """Shard, train, align, deploy, each behind its gates; a refusal ends the chain and is in the report."""
    run = date_run(run)
    try:
        shard_dataset(run, profile)
        pretrain(run, profile)
        align(run, profile)
        deploy(run, profile)
    finally:
        scored = assess(run, profile)
    return scored
