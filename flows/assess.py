"""From records to a score of what they prove, and to the report that shows it."""

from __future__ import annotations

from prefect import flow

from components import storage, study
from components.config import Profile, Run, run_folder
from components.records import Artifact, Record, RunFolder
from components.stages import open_for
from maturity.model import rubric_digest
from maturity.report import as_json, as_markdown, as_text
from maturity.scoring import Scorecard
from tasks.score_maturity import score_maturity
from tasks.write_report import write_report


@flow(name="assess")
def assess(run: Run, profile: Profile) -> Record:
    """Score the run's records and those of the case studies against the maturity model; write the report."""
    folder = run_folder(run, profile)
    drills = RunFolder(folder.root, study.FOLDER)
    evidence = [*_record_files(folder), *_record_files(drills)]
    with open_for(run, profile, "assess", settings={"rubric": rubric_digest()}, inputs=evidence) as stage:
        if stage.done is None:
            scorecard = score_maturity(folder.path("records"), drills.path("records"))
            stage.metrics.update(scorecard.as_dict())
            stage.outputs.append(_publish(scorecard, folder))
    write_report(folder)
    return stage.record


def _record_files(folder: RunFolder) -> list[Artifact]:
    """The records of a run as things that are read, so that a new one means a new score."""
    names = storage.listing(folder.path("records"))
    chosen = [name for name in names if name.endswith(".json") and name != "assess.json"]
    return [_artifact(f"{folder.run_id}/{name}", folder.path("records", name)) for name in chosen]


def _publish(scorecard: Scorecard, folder: RunFolder) -> Artifact:
    """The scorecard as text and page for people, and as JSON, last, for machines."""
    storage.write_text(folder.path("report", "scorecard.txt"), as_text(scorecard))
    storage.write_text(folder.path("report", "scorecard.md"), as_markdown(scorecard))
    storage.write_text(folder.path("report", "scorecard.json"), as_json(scorecard))
    return _artifact("scorecard", folder.path("report", "scorecard.json"))


def _artifact(name: str, url: str) -> Artifact:
    return Artifact(name=name, url=url, digest=storage.sha256_of_bytes(storage.read_bytes(url)))
