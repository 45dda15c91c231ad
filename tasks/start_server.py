"""A server that is ready, or an error that says why not."""

from __future__ import annotations

import tempfile
from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE

from components import storage
from components.config import Profile
from components.records import Artifact
from components.serving import vllm_server
from components.serving.config import Serving
from components.serving.vllm_server import Server


@task(cache_policy=NO_CACHE)
def start_server(release: Artifact, scratch: Path, serving: Serving, profile: Profile) -> Server:
    """Start serving a release, beside whatever serves already; the server it returns takes requests."""
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix=f"{release.digest[:12]}-"))
    server = vllm_server.start(
        storage.fetch(release.url, folder),
        folder,
        expected_digest=release.digest,
        device=profile.devices.kind,
        threads=profile.devices.threads_per_process,
        kv_cache_megabytes=serving.kv_cache_megabytes,
        ready_within_seconds=serving.start_seconds,
    )
    create_link_artifact(key="server", link=f"{server.url}/docs", link_text=f"{server.model} at {server.url}")
    return server
