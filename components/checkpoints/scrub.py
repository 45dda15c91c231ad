"""Reading again what is stored, before someone needs it: the copy that is still good may be the only one.

Disks and stores lose bits that nobody reads. The scrubber goes over all committed and validated checkpoints
of a folder, a run or all runs, the one that was looked at longest ago first, no faster than it is told, and
notes beside them when each was read (`scrubbed.json`), so that it goes on where it stopped.

Pattern: Background Scrub
Problem: a checkpoint that rots on its disk is found out on the day it is needed, and so are those before it.
Answer: read everything again all the time, slowly; what differs is quarantined while others can replace it.
Trade-off: a steady share of the disk's or the network's bandwidth; on a cloud store each pass is paid for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from components import storage
from components.checkpoints import manifest, names, reread, state
from components.checkpoints.reread import Pace
from components.errors import CheckpointCorrupt, ConfigError, NotSigned, NotValidated, StorageError

LEDGER = "scrubbed.json"
logger = logging.getLogger(__name__)


class Seen(BaseModel):
    """When a checkpoint was last read in full."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    manifest_sha256: str
    at: datetime
    bytes: int
    seconds: float


Ledger = dict[str, Seen]
_LEDGER = TypeAdapter(Ledger)
NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Scrubbed:
    """What became of one checkpoint."""

    url: str
    faults: tuple[str, ...]
    """A line a file that is not as it was committed, its name first; such a checkpoint is quarantined."""
    unread: str | None
    """Why it could not be read, when the store was at fault; nothing is known of it then."""
    bytes: int
    seconds: float
    before: datetime | None
    """When it was read before."""

    @property
    def verdict(self) -> str:
        """`whole`, `rotten` or `unread`."""
        return "rotten" if self.faults else "unread" if self.unread else "whole"

    @property
    def line(self) -> str:
        """For people."""
        size, why = f"{self.bytes / 1e6:.1f} MB in {self.seconds:.1f} s", "; ".join(self.faults)
        return f"{self.verdict:<7} {self.url}  {why or self.unread or size}"


def scrub(url: str, *, megabytes_per_second: float | None = None) -> Iterator[Scrubbed]:
    """Read every checkpoint in what is named, oldest read first; quarantine and report what has rotted.

    A store that does not answer leaves a checkpoint unread, never quarantined.
    """
    folders = names.folders_in(url)
    if not folders and not storage.exists(url):
        raise ConfigError(f"nothing at {url}; give a folder of checkpoints, a run, or the root of all runs")
    pace = Pace(megabytes_per_second)
    for before, checkpoint in sorted(_stored(folders), key=lambda found: (found[0] or NEVER, found[1])):
        if (done := _one(checkpoint, before, pace)) is not None:
            if done.verdict != "unread":
                _note(done)
            logger.log(logging.INFO if done.verdict == "whole" else logging.ERROR, "scrub: %s", done.line)
            yield done


def summary(found: list[Scrubbed]) -> str:
    """One line on a pass."""
    counts = {name: sum(one.verdict == name for one in found) for name in ("whole", "rotten", "unread")}
    size, seconds = sum(one.bytes for one in found) / 1e6, sum(one.seconds for one in found)
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{len(found)} checkpoints: {said}; {size:.1f} MB in {seconds:.1f} s"


def refuse_rotten(found: list[Scrubbed]) -> None:
    """CheckpointCorrupt, naming the files, when a pass came upon something that is not what was committed."""
    if rotten := [one.line for one in found if one.verdict == "rotten"]:
        raise CheckpointCorrupt(
            f"{summary(found)}\n" + "\n".join(rotten) + "\nthey are quarantined and nothing loads them; "
            "look at the disk or store they lie on, and copy one that is whole elsewhere"
        )


def last_read(folder: str) -> Ledger:
    """When each checkpoint of a folder was last read in full; a ledger that cannot be read is begun anew."""
    url = storage.join(folder, LEDGER)
    try:
        return _LEDGER.validate_json(storage.read_bytes(url)) if storage.exists(url) else {}
    except ValidationError as error:
        logger.warning("%s is begun anew: %s", url, error.errors()[0]["msg"])
        return {}


def _stored(folders: list[str]) -> Iterator[tuple[datetime | None, str]]:
    for folder in folders:
        ledger = last_read(folder)
        for url in names.newest_first(folder):
            seen = ledger.get(names.name_of(url))
            yield (seen.at if seen else None), url


def _one(checkpoint: str, before: datetime | None, pace: Pace) -> Scrubbed | None:
    """None for what is not stored for use: quarantined, retired, or on its way and without a manifest yet."""
    known = state.read(checkpoint)
    if known is None or known.state not in ("committed", "validated"):
        return None
    if known.state == "committed" and not storage.exists(storage.join(checkpoint, manifest.NAME)):
        return None
    started, bytes_before = time.monotonic(), pace.bytes
    faults: list[str] = []
    unread = None
    try:
        if faults := reread.faults(checkpoint, pace):
            _set_aside(checkpoint, faults)
    except NotSigned as error:
        unread = str(error)
    except NotValidated:  # retired while it was read
        return None
    except (StorageError, OSError) as error:
        unread = f"{type(error).__name__}: {error}"
    spent = time.monotonic() - started
    return Scrubbed(checkpoint, tuple(faults), unread, pace.bytes - bytes_before, spent, before)


def _set_aside(checkpoint: str, faults: list[str]) -> None:
    """Quarantine it; NotValidated when what is missing was deleted on purpose meanwhile."""
    state.quarantine(checkpoint, f"{checkpoint}: {'; '.join(faults)} (found by the scrubber)")
    known = state.read(checkpoint)
    if known is None or known.state == "retired":
        raise NotValidated(f"{checkpoint} was retired while it was read")


def _note(done: Scrubbed) -> None:
    """Beside the checkpoints; what is gone is forgotten."""
    folder, name = names.folder_of(done.url), names.name_of(done.url)
    there = {names.name_of(url) for url in names.newest_first(folder)}
    ledger = {known: seen for known, seen in last_read(folder).items() if known in there}
    if (known := state.read(done.url)) is not None:
        ledger[name] = Seen(
            manifest_sha256=known.manifest_sha256,
            at=datetime.now(UTC),
            bytes=done.bytes,
            seconds=round(done.seconds, 3),
        )
    storage.write_bytes(storage.join(folder, LEDGER), _LEDGER.dump_json(ledger, indent=1) + b"\n")
