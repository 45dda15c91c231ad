"""The checkpoints of a folder, a run or all runs as a table: where each stands, what it holds, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from components.checkpoints import manifest, names, pointer, state
from components.checkpoints.manifest import Manifest
from components.errors import CheckpointError, ConfigError

HEADINGS = ("", "checkpoint", "step", "state", "loss", "size", "age", "ranks", "reason")


@dataclass(frozen=True)
class Row:
    """One checkpoint."""

    url: str
    pointed: bool
    """Whether it is the one that resume and deployment take."""
    state: str
    manifest: Manifest | None
    """None when it cannot be read, or is not signed as it must be; then the reason says so."""
    since: datetime | None
    reason: str

    @property
    def cells(self) -> tuple[str, ...]:
        """As `HEADINGS` say."""
        step, attempt = names.step_and_attempt(self.url)
        content = self.manifest
        size = sum(entry.bytes for entry in content.files.values()) / 1e6 if content else 0
        return (
            "->" if self.pointed else "",
            names.name_of(self.url),
            f"{step}" if attempt == 1 else f"{step} again",
            self.state,
            f"{content.held_out_loss:.4f}" if content else "?",
            f"{size:.1f} MB" if content else "?",
            _age(datetime.now(UTC) - self.since) if self.since else "?",
            f"{content.world_size}" if content else "?",
            self.reason,
        )


def rows(url: str) -> Iterator[Row]:
    """Newest first in each folder; ConfigError where there is nothing."""
    if not (folders := names.folders_in(url)):
        raise ConfigError(
            f"no checkpoints in {url}; give a run, a folder of checkpoints, or the root of all runs, "
            "and `stanchion list` shows the runs"
        )
    for folder in folders:
        try:
            found = pointer.read(folder)
        except CheckpointError:
            found = None
        for checkpoint in names.newest_first(folder):
            pointed = found is not None and found.checkpoint == names.name_of(checkpoint)
            yield _row(checkpoint, pointed)


def as_text(table: list[Row]) -> str:
    """Columns as wide as they must be, a heading for each folder."""
    lines = []
    cells = {row.url: row.cells for row in table}
    widths = [max(map(len, column)) for column in zip(HEADINGS, *cells.values(), strict=True)]
    for folder in dict.fromkeys(names.folder_of(row.url) for row in table):
        inside = [cells[row.url] for row in table if names.folder_of(row.url) == folder]
        lines += [folder, *(_line(line, widths) for line in (HEADINGS, *inside))]
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _row(checkpoint: str, pointed: bool) -> Row:
    known = state.read(checkpoint)
    content, problem = None, ""
    try:
        content, _ = manifest.read_at(checkpoint)
    except CheckpointError as error:
        problem = str(error)
    if known is None:
        return Row(
            checkpoint, pointed, "written", content, None, problem or "never committed; nobody uses it"
        )
    return Row(checkpoint, pointed, known.state, content, known.at, problem or _reason(checkpoint, known))


def _reason(checkpoint: str, known: state.State) -> str:
    if known.state == "validated":
        return "passed " + (", ".join(verdict.gate for verdict in known.verdicts) or "no gate")
    if known.state == "committed":
        return f"not yet judged: stanchion promote {checkpoint}"
    return (known.reason or "").removeprefix(f"{checkpoint}: ").removeprefix(f"{checkpoint} ")


def _age(spent: timedelta) -> str:
    seconds = spent.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
