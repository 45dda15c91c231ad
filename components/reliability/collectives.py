"""Who does not take part in a collective, or in another one than the rest: from what all ranks have called.

Pure: flight recorders in, a verdict out. Ranks of one group make the same calls in the same order, so the
first number at which they differ is where they parted; a rank whose numbers end earlier is being waited for.

Pattern: Collective Fingerprint
Problem: ranks that call different collectives wait for each other until a timeout that names nobody.
Answer: each call has a number in its group and a fingerprint (operation, shape, type, line); compare them.
Trade-off: only calls that the recorder still remembers, and only of ranks that can still answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from components.reliability.finding import Confidence
from components.reliability.flight_recorder import Collective

UNEVEN = {"gather", "scatter", "all_to_all", "alltoall_base", "alltoall", "send", "recv"}
"""Operations whose ranks may bring tensors of different shapes."""
Fingerprint = tuple[str, ...]
Calls = Mapping[int, Sequence[Collective]]


@dataclass(frozen=True)
class Parting:
    """Where ranks of one group parted."""

    kind: Literal["mismatch", "missing"]
    ranks: tuple[int, ...]
    """Those that did otherwise than the rest, or have not come."""
    others: int
    """Ranks that wait for them."""
    group: str
    sequence: int
    wanted: Collective
    """What the others call."""
    instead: Collective | None
    """What the named ranks call in its place; where they have not come, their last call."""
    confidence: Confidence

    @property
    def sentence(self) -> str:
        """For a log line, a record and whoever is woken."""
        many = len(self.ranks) > 1
        who = f"{'ranks' if many else 'rank'} {', '.join(map(str, self.ranks[:8]))}"
        if len(self.ranks) > 8:
            who += f" and {len(self.ranks) - 8} more"
        rest = "the other rank" if self.others == 1 else f"{self.others} other ranks"
        call = f"call {self.sequence} of group {self.group}"
        if self.kind == "mismatch":
            assert self.instead is not None, "it calls something"
            verbs = ("call", "calls" if self.others == 1 else "call")
            mine = verbs[0] if many else "calls"
            return f"{who} {mine} {self.instead.told} where {rest} {verbs[1]} {self.wanted.told}: {call}"
        came = "have not come" if many else "has not come"
        waits = "waits" if self.others == 1 else "wait"
        last = f"; last there: {self.instead.told}" if self.instead else ""
        return f"{who} {came} to {self.wanted.told}, {call}, where {rest} {waits}{last}"


def parting(calls: Calls) -> Parting | None:
    """Where ranks parted; None when all are in step. A mismatch comes first: it is a cause."""
    groups: dict[str, dict[int, dict[int, Collective]]] = defaultdict(dict)
    for rank, made in calls.items():
        for call in made:
            groups[call.group].setdefault(rank, {})[call.sequence] = call
    alike = {name: ranks for name, ranks in groups.items() if "point to point" not in name}
    found = [part for name, ranks in sorted(alike.items()) for part in _of_group(name, ranks)]
    return min(found, key=lambda part: (part.kind != "mismatch", len(part.ranks)), default=None)


def ended(calls: Calls, aborted: Mapping[int, Collective]) -> Parting | None:
    """The same, where a rank ended in a collective and has left no more than the line that called it."""
    for rank, last in sorted(aborted.items()):
        others = {other: made for other, made in calls.items() if other not in aborted and made}
        elsewhere = {other: made for other, made in others.items() if _line(made[-1]) != _line(last)}
        if not elsewhere:
            continue
        made = next(iter(elsewhere.values()))
        mine = made[-1]
        numbered = {call.sequence: call for call in made if call.group == mine.group}
        did = _has_followed(numbered, mine.sequence)
        would = _has_followed({**numbered, mine.sequence: last}, mine.sequence)
        certain = len(elsewhere) > 1 and len(elsewhere) == len(others)
        if certain or (did and not would):
            sure: Confidence = "certain" if certain else "likely"
            return Parting("mismatch", (rank,), len(others), mine.group, mine.sequence, mine, last, sure)
        if would and not did:
            count = len(calls) + len(aborted) - len(elsewhere)
            odd = tuple(sorted(elsewhere))
            return Parting("mismatch", odd, count, mine.group, mine.sequence, last, mine, "likely")
        return Parting("mismatch", (rank,), len(others), mine.group, mine.sequence, mine, last, "unclear")
    return None


def _of_group(name: str, ranks: Mapping[int, Mapping[int, Collective]]) -> Iterator[Parting]:
    if len(ranks) < 2:
        return
    first, last = max(map(min, ranks.values())), min(map(max, ranks.values()))
    seen: set[frozenset[Fingerprint]] = set()
    parted: int | None = None
    for sequence in range(first, last + 1):
        prints = {rank: _fingerprint(made[sequence]) for rank, made in ranks.items() if sequence in made}
        kinds = frozenset(prints.values())
        if len({_shape(one) for one in kinds}) > 1:
            yield _mismatch(name, sequence, ranks)
            return
        if len(kinds) == 1 or kinds in seen:  # rank 0 may always call from a line of its own
            parted = None
        elif parted is None:
            parted = sequence
        seen.add(kinds)
    if _is_end(ranks):
        yield _missing(name, last, ranks) if parted is None else _mismatch(name, parted, ranks)


def _is_end(ranks: Mapping[int, Mapping[int, Collective]]) -> bool:
    """Whether some are ahead."""
    return len({max(made) for made in ranks.values()}) > 1


def _mismatch(name: str, sequence: int, ranks: Mapping[int, Mapping[int, Collective]]) -> Parting:
    prints = {rank: _fingerprint(made[sequence]) for rank, made in ranks.items() if sequence in made}
    kinds = Counter(prints.values())
    (usual, most), *rest = kinds.most_common()
    confidence: Confidence = "certain" if most > len(prints) - most else "unclear"
    if len(rest) == 1 and rest[0][1] == most:  # as many on either side: who has never done so before?
        sides = {kind: [rank for rank, one in prints.items() if one == kind] for kind in kinds}
        new = [kind for kind, who in sides.items() if not _has_followed(ranks[who[0]], sequence)]
        if len(new) == 1:
            usual, confidence = next(kind for kind in kinds if kind != new[0]), "likely"
    odd = tuple(sorted(rank for rank, kind in prints.items() if kind != usual))
    model = next(rank for rank, kind in prints.items() if kind == usual)
    return Parting(
        "mismatch",
        odd,
        len(prints) - len(odd),
        name,
        sequence,
        ranks[model][sequence],
        ranks[odd[0]][sequence],
        confidence,
    )


def _missing(name: str, last: int, ranks: Mapping[int, Mapping[int, Collective]]) -> Parting:
    behind = tuple(sorted(rank for rank, made in ranks.items() if max(made) == last))
    ahead = next(made for made in ranks.values() if max(made) > last)
    others = len(ranks) - len(behind)
    confidence: Confidence = (
        "certain" if len(behind) == 1 else "likely" if others >= len(behind) else "unclear"
    )
    wanted, instead = ahead.get(last + 1, ahead[max(ahead)]), ranks[behind[0]].get(last)
    return Parting("missing", behind, others, name, last + 1, wanted, instead, confidence)


def _has_followed(made: Mapping[int, Collective], sequence: int) -> bool:
    """Whether this call of a rank has come after the one before it at some earlier time."""
    if sequence - 1 not in made:
        return False
    pair = (_line(made[sequence - 1]), _line(made[sequence]))
    return any(
        number - 1 in made and (_line(made[number - 1]), _line(made[number])) == pair
        for number in made
        if number < sequence
    )


def _line(call: Collective) -> Fingerprint:
    """What is known of a call in any case."""
    return call.op, call.place


def _fingerprint(call: Collective) -> Fingerprint:
    return (*_shape((call.op, call.sizes, call.dtypes)), call.place)


def _shape(fingerprint: Fingerprint) -> Fingerprint:
    """What must be the same on all ranks, wherever it was called."""
    op, sizes, dtypes = fingerprint[:3]
    return (op, "", dtypes) if op in UNEVEN else (op, sizes, dtypes)
