"""One self-contained page about a run: what became of it, what it measured, what it cost, what it proves.

Reads records and events only. No script, no outside host; a stage that is missing or broke is shown as that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from components import storage
from components.observability import canvas, events, picture, plots, provenance, readings
from components.observability.picture import STAGES
from components.records import Record, RunFolder

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("report.html.j2")
OUTCOMES = {"true": "proved", "false": "disproved", "not_applicable": "not applicable"}


def write(folder: RunFolder) -> str:
    """Publish the report of a run as `report/index.html`; its URL."""
    records = {record.stage: record for record in folder.records()}
    happened = {stage: _events(folder, stage) for stage in ("pretrain", "rl")}
    url = folder.path("report", "index.html")
    storage.write_text(url, render(folder.run_id, records, happened))
    logger.info("report: %s", url)
    return url


def render(
    run_id: str, records: Mapping[str, Record], happened: Mapping[str, Sequence[Mapping[str, Any]]]
) -> str:
    """The page, from records by stage and events by stage."""
    from jinja2 import Environment, StrictUndefined

    engine = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    engine.filters |= {"duration": duration, "money": money, "headline": readings.headline}
    chain = [records[stage] for stage in STAGES if stage in records]
    page = engine.from_string(TEMPLATE.read_text())
    return page.render(
        run_id=run_id,
        verdict=verdict_of(records),
        stages=[(stage, title, records.get(stage)) for stage, title in STAGES.items()],
        chain=chain,
        time=time_shares(chain),
        figures=figures(records, happened),
        before_after=readings.before_and_after(records.get("rl")),
        prompts=records["rl"].metrics.get("prompts") if "rl" in records else None,
        samples=readings.samples(records.get("rl")),
        load=readings.load_summary(records.get("deploy")),
        scorecard=records["assess"].metrics if "assess" in records else {},
        outcomes=OUTCOMES,
        machine=provenance.machine(),
        versions=provenance.versions(),
        light=canvas.css(dark=False),
        dark=canvas.css(dark=True),
    )


def verdict_of(records: Mapping[str, Record]) -> dict[str, str]:
    """What became of the run: promoted, blocked, failed or unfinished, and why."""
    for stage, title in STAGES.items():
        record = records.get(stage)
        if record is None:
            if stage == "assess":
                break
            return _verdict(
                "unfinished", f"{title} has not run yet; `stanchion run {stage}` goes on from here"
            )
        if record.status == "refused":
            said = [f"{one.gate}: {one.reason}" for one in record.verdicts if not one.passed]
            return _verdict("blocked", f"{title}: {'; '.join(said) or record.reason or 'a gate said no'}")
        if record.status == "failed":
            return _verdict("failed", f"{title}: {record.reason or 'ended without a reason'}")
    asked = sum(len(record.verdicts) for record in records.values() if record.stage in STAGES)
    return _verdict("promoted", f"all {asked} gate verdicts passed")


def time_shares(chain: Sequence[Record]) -> dict[str, float]:
    """Wall time from the first start to the last end, and how much of it no stage accounts for."""
    if not chain:
        return {"wall": 0.0, "between": 0.0, "share": 0.0, "cost": 0.0}
    wall = (max(r.ended_at for r in chain) - min(r.started_at for r in chain)).total_seconds()
    between = max(0.0, wall - sum(record.seconds for record in chain))
    share = between / wall if wall else 0.0
    return {"wall": wall, "between": between, "share": share, "cost": sum(r.cost for r in chain)}


def figures(
    records: Mapping[str, Record], happened: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, str]]:
    """Every figure of the page, or the reason why one is not there."""
    trained, aligned = happened.get("pretrain", []), happened.get("rl", [])
    loss = readings.points(trained, "step", "loss")
    held_out = readings.points(trained, "evaluate", *readings.HELD_OUT)
    seconds = readings.step_seconds(trained)
    reward = readings.points(aligned, "update", *readings.REWARD)
    parses = readings.points(aligned, "update", *readings.PARSES)
    kl = readings.points(aligned, "update", *readings.DRIFT)
    waits = readings.first_token_seconds(records.get("deploy"))
    made = [record for record in records.values() if record.outputs and record.stage != "assess"]
    return {
        "loss": _figure(loss, lambda: plots.loss_curve(loss, held_out, readings.unigram(records))),
        "step_time": _figure(seconds, lambda: plots.step_time(seconds)),
        "reward": _figure(reward, lambda: plots.reward_curve(reward, parses, kl)),
        "latency": _figure(waits, lambda: plots.latency(waits)),
        "lineage": _figure(made, lambda: picture.lineage(made)),
    }


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def money(amount: float, currency: str) -> str:
    """An amount with as many digits as tell anything."""
    digits = 2 if amount >= 1 else 3 if amount >= 0.01 else 5
    return f"{amount:.{digits}f} {currency}"


def _verdict(word: str, why: str) -> dict[str, str]:
    return {"word": word, "why": why}


def _figure(data: Any, draw: Callable[[], str]) -> dict[str, str]:
    """A drawn figure; what was not measured or cannot be drawn leaves a sentence instead."""
    if not data:
        return {"svg": "", "missing": "Nothing was recorded for this figure."}
    try:
        return {"svg": draw(), "missing": ""}
    except Exception as error:
        logger.exception("a figure could not be drawn")
        return {"svg": "", "missing": f"Could not be drawn: {type(error).__name__}: {error}"}


def _events(folder: RunFolder, stage: str) -> list[dict[str, Any]]:
    """The events of a stage, on whatever storage they lie."""
    url = folder.path("events", stage)
    return events.read(storage.fetch(url)) if storage.exists(url) else []
