"""Which checkpoints stay: the last validated ones, every so many steps one, and a few for the post-mortem.

What goes is `retired` in its state first, so from then on no reader looks at it; then the manifest, then the
rest, then the state itself. A crash on the way leaves a retired state, and the next time goes on from there.

Pattern: Guarded Retention
Problem: a job that keeps the newest three keeps three rotten ones, and deletes the last that was good.
Answer: only validated ones count, and before anything goes the newest of them is read again, byte by byte.
Trade-off: one read of a checkpoint for each time that something is deleted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pydantic import Field

from components import plugins, storage
from components.checkpoints import manifest, names, reread, state
from components.checkpoints.state import State

logger = logging.getLogger(__name__)


class Retention(plugins.Config):
    """What is kept of each folder of checkpoints; where it lies has the room, so a profile says how much."""

    keep_last: int = Field(default=3, ge=1)
    """Newest validated checkpoints that stay; one at least, and it is read again before another goes."""

    keep_every: int | None = Field(default=None, ge=1)
    """Validated checkpoints whose step is a multiple of this stay for ever; null: none does."""

    keep_quarantined: int = Field(default=2, ge=0)
    """Newest quarantined checkpoints that stay, for whoever looks for the cause."""


@dataclass(frozen=True)
class Known:
    """A checkpoint by its URL, and where it stands."""

    url: str
    state: State

    @property
    def order(self) -> tuple[int, int]:
        """Step and attempt."""
        return names.step_and_attempt(self.url)


@dataclass
class Plan:
    """What stays and what goes, each with its reason."""

    keep: dict[str, str] = field(default_factory=dict)
    retire: dict[str, str] = field(default_factory=dict)


def apply(folder: str, retention: Retention) -> Plan:
    """Delete what need not be kept; nothing, when no validated checkpoint is whole."""
    for left in _known(folder, "retired"):  # by a run that died on the way
        delete(left.url)
    while (chosen := plan(_known(folder), retention)).retire:
        if not (validated := _known(folder, "validated")):
            logger.warning("%s: nothing is deleted, since nothing in it is validated", folder)
            return Plan(keep={url: "nothing is validated" for url in chosen.keep | chosen.retire})
        if _is_whole(validated[0].url):
            break
    for url, reason in reversed(chosen.retire.items()):
        logger.info("%s is deleted: %s", url, reason)
        state.retire(url, reason)
        delete(url)
    return chosen


def plan(known: list[Known], retention: Retention) -> Plan:
    """Decide by states alone; `known` is newest first."""
    found = Plan()
    last, aside = retention.keep_last, retention.keep_quarantined
    validated = [one for one in known if one.state.state == "validated"]
    quarantined = [one for one in known if one.state.state == "quarantined"]
    for index, one in enumerate(validated):
        step, _ = one.order
        if index < last:
            found.keep[one.url] = f"one of the last {last} that are validated"
        elif retention.keep_every and step % retention.keep_every == 0:
            found.keep[one.url] = f"its step is a multiple of {retention.keep_every}"
        else:
            found.retire[one.url] = f"{last} newer ones are validated"
    for index, one in enumerate(quarantined):
        if index < aside:
            found.keep[one.url] = "quarantined, for the post-mortem"
        else:
            found.retire[one.url] = f"quarantined, and {aside} newer ones are kept for the post-mortem"
    enough = validated[last - 1].order if len(validated) >= last else None
    for one in known:
        if one.state.state == "committed":
            if enough is None or one.order > enough:
                found.keep[one.url] = "not yet judged"
            else:
                found.retire[one.url] = f"never judged, and {last} newer ones are validated"
    return found


def delete(url: str) -> None:
    """Remove a retired checkpoint: first what vouches for it, last what says that it is retired."""
    known = state.read(url)
    if known is None or known.state != "retired":
        raise ValueError(f"{url} is {known.state if known else 'unknown'}: only what is retired is deleted")
    storage.remove(storage.join(url, manifest.NAME))
    storage.remove(url)
    storage.remove(state.url_of(url))


def _is_whole(url: str) -> bool:
    """Whether its bytes are those that were committed; what has rotted is quarantined, and does not count."""
    if not (different := reread.faults(url)):
        return True
    logger.error("%s has rotted, so older ones stay: %s", url, "; ".join(different))
    state.quarantine(url, f"{url}: {'; '.join(different)}")
    return False


def _known(folder: str, *only: str) -> list[Known]:
    """Every checkpoint that has a state, newest first; also one whose files are gone already."""
    found = [name for name in storage.listing(folder) if name.endswith(names.STATE)]
    urls = [storage.join(folder, name.removesuffix(names.STATE)) for name in found]
    named = [url for url in urls if names.NAME.fullmatch(names.name_of(url))]
    known = [Known(url, one) for url in named if (one := state.read(url)) is not None]
    chosen = [one for one in known if (one.state.state in only if only else one.state.state != "retired")]
    return sorted(chosen, key=lambda one: one.order, reverse=True)
