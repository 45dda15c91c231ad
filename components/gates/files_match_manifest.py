"""Every file of the checkpoint has the digest and size that its manifest says, and no file is there beside.

When to use: always, and first: it is what makes the bytes worth looking at. What it costs: one read of every
byte, about a second for each gigabyte.
"""

from __future__ import annotations

from pathlib import Path

from components import plugins
from components.checkpoints import manifest, state
from components.judgement import Subject
from components.records import Verdict


class Config(plugins.Config):
    """Nothing to set."""


def check(subject: Subject, config: Config) -> Verdict:
    """Compare the folder with its manifest, and the manifest with the one that was committed."""
    content = manifest.read(subject.path)
    different = _not_committed(subject.path) + manifest.differences(subject.path, content)
    size = sum(entry.bytes for entry in content.files.values())
    return Verdict(
        gate="files_match_manifest",
        passed=not different,
        reason="; ".join(different[:3]) or f"{len(content.files)} files, {size / 1e6:.1f} MB, all as written",
        figures={"files": len(content.files), "bytes": size, "different": len(different)},
    )


def _not_committed(folder: Path) -> list[str]:
    """The manifest's own digest is kept in the state file beside, where there is one."""
    known = state.read(str(folder))
    if known is None or (found := manifest.digest(folder)) == known.manifest_sha256:
        return []
    return [f"{manifest.NAME} has SHA-256 {found[:12]}, {known.manifest_sha256[:12]} was committed"]
