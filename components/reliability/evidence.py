"""What still stands of a job that is about to be ended, and what it says about who is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from components.reliability import collectives, connections, flight_recorder, stacks
from components.reliability.collectives import Parting
from components.reliability.connections import Cut
from components.reliability.finding import Finding
from components.reliability.flight_recorder import Collective
from components.reliability.heartbeat import Beat


@dataclass(frozen=True)
class Evidence:
    """By rank; a rank that has ended or does not answer is left out."""

    stacks: dict[int, str] = field(default_factory=dict)
    calls: dict[int, list[Collective]] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    """Ranks that are alive and did not tell of their collectives."""
    aborted: dict[int, Collective] = field(default_factory=dict)
    """Where ranks were that ended in a collective."""
    cut: Cut | None = None
    """Whom the network no longer reaches."""

    @property
    def parted(self) -> Parting | None:
        """Where ranks parted in their collectives; None when all are in step, or nothing is known."""
        return collectives.parting(self.calls) or collectives.ended(self.calls, self.aborted)


def gather(beats: Sequence[Beat], folder: Path) -> Evidence:
    """Ask every rank of the job in `folder`; a few seconds at most."""
    pids = {beat.rank: beat.pid for beat in beats}
    calls = flight_recorder.collect(pids, folder)  # first: a debugger stops a process while it reads
    alive = [rank for rank, pid in pids.items() if stacks.belongs(pid, folder)]
    silent = tuple(rank for rank in alive if rank not in calls)
    cut = connections.cut({rank: pids[rank] for rank in alive})
    return Evidence(stacks.dump(pids, folder), calls, silent, cut=cut)


def left(beats: Sequence[Beat], folder: Path) -> Evidence:
    """What ranks have written before they ended."""
    calls = flight_recorder.read(folder, [beat.rank for beat in beats])
    words = {beat.rank: flight_recorder.last_words(log(folder, beat.rank)) for beat in beats}
    return Evidence(calls=calls, aborted={rank: call for rank, call in words.items() if call is not None})


def log(folder: Path, rank: int) -> str:
    """What a rank has written to its error log in the last attempt."""
    attempts = sorted((folder / "logs").glob("attempt-*"))
    found = attempts[-1].glob(f"**/{rank}/stderr.log") if attempts else ()
    return "".join(path.read_text(errors="replace") for path in found)


def explained(finding: Finding, evidence: Evidence) -> Finding:
    """The finding with what the collectives add: a name where beats leave it open, and which call it was.

    Beats are certain when one rank alone is behind. Where ranks stand in one phase, it is the rank that has
    not come to a collective or calls another one; else the only one that does not answer at all. Data that
    the network does not deliver says most: all that waits for it follows from that.
    """
    if finding.kind not in ("stall", "crash"):
        return finding
    if finding.kind == "stall" and evidence.cut is not None:
        return _by_network(finding, evidence.cut)
    parted = evidence.parted
    if parted is None:
        return _by_silence(finding, evidence)
    if parted.kind == "mismatch":
        return _mismatch(finding, parted)
    if finding.kind == "crash" or (finding.confidence == "certain" and finding.rank not in parted.ranks):
        return finding
    rank = finding.rank if finding.rank in parted.ranks else parted.ranks[0]
    sure = "certain" if finding.confidence == "certain" else parted.confidence
    return replace(
        finding, rank=rank, sentence=f"{finding.sentence}; {parted.sentence}", confidence=sure, advice=_ADVICE
    )


def _by_network(finding: Finding, cut: Cut) -> Finding:
    return replace(
        finding,
        rank=cut.rank,
        sentence=f"{finding.sentence}; {cut.sentence}",
        confidence=cut.confidence,
        advice="the links of that rank's machine, its switch port and its firewall: every process is well.",
        figures={**finding.figures, "links": cut.links},
    )


def _mismatch(finding: Finding, parted: Parting) -> Finding:
    return replace(
        finding,
        kind="collective_mismatch",
        rank=parted.ranks[0],
        confidence=parted.confidence,
        sentence=parted.sentence,
        advice="the two lines named: a branch that depends on the rank, or on data that ranks do not share.",
        figures={
            **finding.figures,
            "sequence": parted.sequence,
            "group": parted.group,
            "ranks": parted.ranks,
        },
    )


def _by_silence(finding: Finding, evidence: Evidence) -> Finding:
    if finding.kind == "crash" or finding.confidence == "certain" or len(evidence.silent) != 1:
        return finding
    (rank,) = evidence.silent
    told = f"{finding.sentence}; rank {rank} alone does not answer: stopped, or its interpreter lock is held"
    return replace(finding, rank=rank, sentence=told, confidence="likely")


_ADVICE = "the stack of that rank: what it does instead of the collective that the others wait in."
