"""What is kept of a stall or crash before the evidence is killed: `incidents/<n>/` in the job's folder.

summary.md        for whoever is woken: what happened, where, what was done, what to look at
stacks/           the Python stack of every rank       beats.json        where each rank said it was
events.jsonl      the last events of every rank        environment.json  variables that matter, no secrets
flight/           the last collectives of every rank   log.txt           the end of the log
finding.json      what was found, and on what figures
collectives.json  where ranks parted in their collectives, and the last call of each
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from components import storage
from components.jobs import Job
from components.observability import events
from components.reliability import stacks
from components.reliability.evidence import Evidence
from components.reliability.finding import Finding
from components.reliability.heartbeat import Beat

LAST_EVENTS = 20
SHOWN_RANKS = 16
MATTERS = re.compile(r"^(CUDA_|DS_|GLOO_|GOMP_|MASTER_|NCCL_|OMP_|STANCHION_|TORCH|LOCAL_|RANK$|WORLD_SIZE$)")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True)
class Incident:
    """What ended an attempt of a job, as it was found."""

    job: Job
    beats: list[Beat]
    log: str
    finding: Finding
    found_at: float = field(default_factory=time.time)
    """Unix time."""

    @property
    def title(self) -> str:
        """One line that says what happened."""
        found, job = self.finding, self.job.name
        if found.kind == "crash":
            return f"Crash of {job}"
        if found.kind == "corruption":
            return f"Refused checkpoint of {job}"
        kind = found.kind.replace("_", " ").capitalize()
        rank = f": rank {found.rank}" if found.rank is not None else ""
        place = f" in {found.phase} of step {found.step}" if found.phase else f" at step {found.step}"
        return f"{kind} of {job}{rank}{place}"


def write(incident: Incident, evidence: Evidence) -> Path:
    """Leave the bundle."""
    folder = _next_folder(incident.job.folder / "incidents")
    storage.write_json(str(folder / "finding.json"), asdict(incident.finding))
    for rank, text in evidence.stacks.items():
        storage.write_text(str(folder / "stacks" / f"rank-{rank:05d}.txt"), text)
    for rank, calls in evidence.calls.items():
        text = "".join(json.dumps(asdict(call)) + "\n" for call in calls)
        storage.write_text(str(folder / "flight" / f"rank-{rank:05d}.jsonl"), text)
    storage.write_json(str(folder / "collectives.json"), collectives_of(evidence))
    storage.write_json(str(folder / "beats.json"), [asdict(beat) for beat in incident.beats])
    storage.write_text(str(folder / "events.jsonl"), _last_events(incident))
    storage.write_json(str(folder / "environment.json"), environment(incident.job.environment))
    storage.write_text(str(folder / "log.txt"), incident.log + "\n")
    storage.write_text(str(folder / "summary.md"), summary(incident, evidence))
    return folder


def collectives_of(evidence: Evidence) -> dict[str, Any]:
    """For programs: the verdict of the comparison, the last call of each rank, and who gave no answer."""
    last = {rank: calls[-1] for rank, calls in evidence.calls.items() if calls} | evidence.aborted
    return {
        "parted": asdict(evidence.parted) if evidence.parted else None,
        "last": {str(rank): asdict(call) for rank, call in sorted(last.items())},
        "silent": evidence.silent,
        "cut": asdict(evidence.cut) if evidence.cut else None,
    }


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer a job; whatever sounds like a secret is left out."""
    known = {**os.environ, **more}
    return {name: known[name] for name in sorted(known) if MATTERS.match(name) and not SECRET.search(name)}


def summary(incident: Incident, evidence: Evidence) -> str:
    """The page to read first."""
    finding, found = incident.finding, evidence.stacks
    parts = [f"# {incident.title}", "", *_what_happened(incident)]
    if finding.rank is not None and found:
        parts += ["", "## Where the suspect stands", "", *_stack_of(finding.rank, found)]
    parts += ["", "## Where every rank is", "", *_rank_table(incident, found)]
    if evidence.calls:
        parts += ["", "## The last collective of every rank", "", *_last_calls(evidence)]
    parts += ["", "## End of the log", "", "```", incident.log.strip() or "(empty)", "```"]
    return "\n".join(parts) + "\n"


def _what_happened(incident: Incident) -> list[str]:
    finding = incident.finding
    if finding.kind == "crash":
        return [
            "A rank ended with an error; the others were ended with it. The job is started again from the",
            "newest validated checkpoint while restarts are left. First look: the end of the log, below.",
        ]
    alive = " Every process was alive." if finding.kind != "collective_mismatch" else ""
    told = [f"{finding.sentence[0].upper()}{finding.sentence[1:]}.{alive}"]
    if finding.kind == "collective_mismatch":
        told.append(
            f"Confidence in the name: **{finding.confidence}**: the calls of all ranks were compared."
        )
    if finding.kind == "stall":
        told += [
            f"Confidence in the name: **{finding.confidence}**. A rank that is ahead waits in a collective",
            "for the one that is behind, so the rank with the lowest step and phase is the suspect.",
        ]
    return [
        *told,
        "",
        "What was done: this bundle was written, then the whole process tree was ended; the job starts again",
        "from the newest validated checkpoint while restarts are left.",
        "",
        f"What to look at next: {finding.advice or 'the stacks and the last events of the ranks.'}",
    ]


def _stack_of(rank: int, found: Mapping[int, str]) -> list[str]:
    text = found.get(rank, "")
    frames = stacks.innermost(text) or [text.strip() or "no stack: the rank has never reported its process"]
    return ["```", *frames, "```"]


def _last_calls(evidence: Evidence) -> list[str]:
    """One line for each call, so that a thousand ranks are still a short table."""
    ranks: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for rank, calls in evidence.calls.items():
        if calls:
            ranks[calls[-1].told, calls[-1].group, calls[-1].sequence].append(rank)
    lines = ["| ranks | call | group | last collective |", "|---|---|---|---|"]
    for (told, group, sequence), there in sorted(ranks.items(), key=lambda item: item[0][2]):
        lines.append(f"| {_listed(there)} | {sequence} | {group} | {told} |")
    if evidence.silent:
        lines += ["", f"No answer from {_listed(evidence.silent)}: stopped, or the interpreter lock is held."]
    return lines


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - SHOWN_RANKS} more" if len(ranks) > SHOWN_RANKS else ""
    return ", ".join(map(str, ranks[:SHOWN_RANKS])) + more


def _rank_table(incident: Incident, found: Mapping[int, str]) -> list[str]:
    """One line for each place, so that a thousand ranks are still a short table."""
    now = time.time()
    places = Counter((beat.step, beat.phase) for beat in incident.beats)
    lines = ["| step | phase | ranks | oldest beat | innermost frame |", "|---|---|---|---|---|"]
    for step, phase in sorted(places):
        there = [beat for beat in incident.beats if (beat.step, beat.phase) == (step, phase)]
        ranks = _listed([beat.rank for beat in there])
        age = max(now - beat.at for beat in there)
        frame = next(iter(stacks.innermost(found.get(there[0].rank, ""), 1)), "")
        lines.append(f"| {step} | {phase} | {ranks} | {age:.1f} s ago | `{frame}` |")
    silent = incident.job.processes - len(incident.beats)
    return [*lines, *([f"\n{silent} ranks have never beaten."] if silent else [])]


def _last_events(incident: Incident) -> str:
    folder = incident.job.folder / "events"
    last = [event for beat in incident.beats for event in events.read(folder, rank=beat.rank)[-LAST_EVENTS:]]
    return "".join(json.dumps(event) + "\n" for event in last)


def _next_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / str(
        1 + max((int(path.name) for path in parent.iterdir() if path.name.isdigit()), default=0)
    )
    folder.mkdir()
    return folder
