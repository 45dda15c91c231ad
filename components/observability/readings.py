"""What figures need, read out of records and events; what was not measured is empty, never an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from components.alignment.summary import TITLES
from components.records import Record

Event = Mapping[str, Any]
Points = list[tuple[float, float]]

HELD_OUT = ("held_out_loss", "loss")
REWARD = ("reward", "reward_mean", "mean_reward")
PARSES = ("parses", "parse_share", "parsed_share")
DRIFT = ("kl", "kl_per_token")


def points(events: Iterable[Event], kind: str, *names: str) -> Points:
    """`(step, value)` of one kind of event, the value under the first of some names that is there.

    A step that was done twice, after a restart, counts as it was done last.
    """
    found: dict[float, float] = {}
    for event in events:
        value = next((event[name] for name in names if isinstance(event.get(name), (int, float))), None)
        if event.get("kind") == kind and event.get("rank", 0) == 0 and value is not None:
            found[float(event.get("step", len(found)))] = float(value)
    return sorted(found.items())


def step_seconds(events: Iterable[Event]) -> dict[int, dict[str, float]]:
    """Mean seconds of a step by rank and phase; the first steps warm up and are left out.

    Waits inside collectives are taken out of their phases and stand by themselves, as `communication`.
    """
    timed = [event for event in events if event.get("kind") == "step" and event.get("seconds")]
    warm = timed[len(timed) // 20 :]
    by_rank: dict[int, list[Mapping[str, float]]] = {}
    for event in warm:
        by_rank.setdefault(int(event.get("rank", 0)), []).append(_parted(event))
    return {rank: _mean(spent) for rank, spent in sorted(by_rank.items())}


def unigram(records: Mapping[str, Record]) -> float | None:
    """Nats per held-out token of a unigram model: the bar that training must beat."""
    for stage in ("shard_dataset", "pretrain"):
        value = records[stage].metrics.get("unigram_cross_entropy") if stage in records else None
        if isinstance(value, (int, float)):
            return float(value)
    return None


def first_token_seconds(record: Record | None) -> list[float]:
    """Time to the first token of each request of the load test that was served."""
    rows = _load(record).get("rows") or []
    return [float(row["first_token"]) for row in rows if row.get("first_token") is not None]


def load_summary(record: Record | None) -> list[tuple[str, str]]:
    """The load test in words: name and value."""
    load = _load(record)
    lines = [
        ("requests served", f"{load['served']} of {load['requests']}") if "served" in load else None,
        ("requests per second", f"{load['requests_per_second']:.2f}")
        if "requests_per_second" in load
        else None,
        ("tokens per second", f"{load['tokens_per_second']:.1f}") if "tokens_per_second" in load else None,
        *(
            (title, _percentiles(load[name]))
            for name, title in (
                ("first_token_seconds", "time to first token"),
                ("per_token_seconds", "time per output token"),
                ("latency_seconds", "whole answer"),
            )
            if load.get(name)
        ),
    ]
    return [line for line in lines if line is not None]


def headline(record: Record) -> str:
    """The one figure of a stage that people ask for; empty when it was not measured."""
    metrics = record.metrics
    if isinstance(tokens := metrics.get("tokens"), Mapping) and "train" in tokens:
        return f"{tokens['train']:,} tokens"
    if isinstance(platform := metrics.get("platform"), Mapping):
        return f"L{platform['level']} {platform['name']}"
    if rate := _load(record).get("tokens_per_second"):
        return f"{rate:.0f} tokens/s"
    if (parsed := _change(metrics, "parse_share")) is not None:
        return f"parses {parsed[0]:.0%} → {parsed[1]:.0%}"
    if isinstance(loss := metrics.get("held_out_loss"), (int, float)):
        return f"loss {loss:.2f} held out"
    return ""


def before_and_after(record: Record | None) -> list[dict[str, Any]]:
    """Measures of the policy before and after alignment and their change, each with its interval."""
    metrics = record.metrics if record else {}
    moments = [metrics.get(name) for name in ("before", "after", "rise")]
    before, after, rise = (one if isinstance(one, Mapping) else {} for one in moments)
    known = [name for name in TITLES if name in after] + sorted(set(after) - set(TITLES))
    rows = [
        {
            "measure": TITLES.get(name, name.replace("_", " ")),
            "before": _estimate(before.get(name)),
            "after": _estimate(after[name]),
            "change": _estimate(rise.get(name), "+.3g"),
        }
        for name in known
    ]
    return [row for row in rows if row["after"]]


def samples(record: Record | None, most: int = 3) -> list[Mapping[str, Any]]:
    """Completions of the same prompt before and after."""
    found = record.metrics.get("samples") if record else None
    return [one for one in found if isinstance(one, Mapping)][:most] if isinstance(found, list) else []


def _load(record: Record | None) -> Mapping[str, Any]:
    load = record.metrics.get("load") if record else None
    return load if isinstance(load, Mapping) else {}


def _percentiles(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in values.items())


def _estimate(value: Any, form: str = ".3g") -> tuple[str, str] | None:
    """A number and its interval as people read them; nothing for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return format(value, form), ""
    if not isinstance(value, Mapping) or not isinstance(value.get("mean"), (int, float)):
        return None
    low, high = value.get("low"), value.get("high")
    spread = f"{low:{form}} to {high:{form}}" if low is not None and high is not None else ""
    return format(value["mean"], form), spread


def _mean(spent: list[Mapping[str, float]]) -> dict[str, float]:
    phases = {phase for one in spent for phase in one}
    return {phase: sum(one.get(phase, 0.0) for one in spent) / len(spent) for phase in sorted(phases)}


def _parted(event: Event) -> dict[str, float]:
    """The phases of one step without their waits, and those together; as many seconds as before."""
    waited: Mapping[str, float] = event.get("communication") or {}
    alone = {phase: seconds - waited.get(phase, 0.0) for phase, seconds in event["seconds"].items()}
    return alone | ({"communication": sum(waited.values())} if waited else {})


def _change(metrics: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Means of a measure before and after, when both were estimated."""
    values = []
    for moment in ("before", "after"):
        measured = metrics.get(moment)
        value = measured.get(name) if isinstance(measured, Mapping) else None
        value = value.get("mean") if isinstance(value, Mapping) else value
        if not isinstance(value, (int, float)):
            return None
        values.append(float(value))
    return values[0], values[1]
