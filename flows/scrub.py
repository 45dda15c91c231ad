"""In the background: stored checkpoints are read again before someone needs them."""

from __future__ import annotations

from prefect import flow

from components import storage
from components.checkpoints import sign
from components.checkpoints.scrub import Scrubbed, refuse_rotten
from components.config import Profile
from tasks.scrub_checkpoints import scrub_checkpoints


@flow(name="scrub")
def scrub(
    profile: Profile, path: str | None = None, megabytes_per_second: float | None = 50.0
) -> list[Scrubbed]:
    """Read again what is stored of all runs, or of one; the flow fails when something has rotted."""
    storage.use(profile.storage)
    sign.use(profile.secrets)
    found = scrub_checkpoints(path or profile.storage.root, megabytes_per_second)
    refuse_rotten(found)
    return found
