"""What the records prove."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from maturity import evidence, report, scoring


@task(cache_policy=NO_CACHE)
def score_maturity(*folders: str) -> scoring.Scorecard:
    """Score the record files of some folders; the dimensions as a table, the claims as a page."""
    scorecard = scoring.score(evidence.read(*folders))
    rows = [
        {
            "dimension": one.name,
            "level": report.level_name(one.level),
            "score": report.percent(one.score),
            "blocked by": ", ".join(one.blocking),
        }
        for one in scorecard.dimensions
        if one.status == "scored"
    ]
    create_table_artifact(key="maturity", table=rows, description=report.level_name(scorecard.level))
    create_markdown_artifact(key="scorecard", markdown=report.as_markdown(scorecard))
    return scorecard
