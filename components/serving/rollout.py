"""Which release takes traffic: one small file that names it and the one before, switched in one rename.

Pattern: Release Pointer
Problem: a deployment that overwrites what runs has no way back but to deploy again, when it matters most.
Answer: releases stay where they are; a pointer names the current and the previous one, and switches at once.
Trade-off: the previous release keeps its place on the disk, and whoever routes traffic must read the pointer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from components import storage
from components.errors import ServingError
from components.records import Artifact, digest
from components.serving import client, vllm_server
from components.serving import release as releases
from components.serving.vllm_server import Server

logger = logging.getLogger(__name__)

REFUSALS_KEPT = 20


class Deployment(BaseModel):
    """A release that takes traffic, or did."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release: Artifact
    run_id: str
    model: str
    endpoint: str | None = None
    """Where it answers; None when its server was stopped after it had been measured."""
    server: str | None = None
    """Folder of its server, by which it is found and stopped."""
    promoted_at: datetime


class Refusal(BaseModel):
    """A candidate that was not promoted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    release: str
    reason: str
    at: datetime


class Pointer(BaseModel):
    """What the file says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int = 1
    current: Deployment | None = None
    previous: Deployment | None = None
    refusals: tuple[Refusal, ...] = ()


def pointer_url(root: str, name: str) -> str:
    """Where the pointer of all runs called `name` lies."""
    return storage.join(root, "deployments", f"{name}.json")


def read(url: str) -> Pointer:
    """The pointer; an empty one before the first deployment."""
    return Pointer.model_validate(storage.read_json(url)) if storage.exists(url) else Pointer()


def promote(url: str, deployment: Deployment) -> Pointer:
    """Let a release take the traffic; the one it replaces becomes the previous one."""
    old = read(url)
    same = old.current is not None and old.current.release.digest == deployment.release.digest
    previous = old.previous if same else old.current
    return _publish(url, old.model_copy(update={"current": deployment, "previous": _stopped(previous)}))


def take_traffic(url: str, release: Artifact, server: Server, *, run_id: str, keep_running: bool) -> Artifact:
    """Promote the release this server serves; after the switch, the server it replaces is ended."""
    replaced = read(url).current
    deployment = Deployment(
        release=release,
        run_id=run_id,
        model=server.model,
        endpoint=server.url if keep_running else None,
        server=str(server.folder) if keep_running else None,
        promoted_at=datetime.now(UTC),
    )
    if keep_running:
        server.keep()
    promote(url, deployment)
    if replaced and replaced.server and replaced.server != deployment.server:
        vllm_server.stop(Path(replaced.server))
    return Artifact(name="deployment", url=url, digest=digest(deployment.model_dump(mode="json")))


def announcement(url: str) -> list[str]:
    """What to tell whoever deployed: where it answers, how to ask, how to end it."""
    deployment = read(url).current
    if deployment is None:
        return [f"{url} names no release"]
    promoted = f"release {deployment.release.digest[:12]} of '{deployment.model}' takes the traffic"
    if deployment.endpoint is None or deployment.server is None:
        return [promoted, "its server was measured and ended; keep it with --set serving.keep_running=true"]
    return [
        f"{promoted} at {deployment.endpoint}/v1",
        f"ask it:  {client.curl_example(deployment.endpoint, deployment.model, 'def add(a, b):')}",
        f"end it:  python -m components.serving.vllm_server {deployment.server}",
    ]


def rollback(url: str) -> Pointer:
    """Let the previous release take the traffic again, once its bytes are found to be as they were."""
    old = read(url)
    if old.previous is None:
        raise ServingError(f"{url} names no previous release; deploy one that passes its gates instead")
    releases.verify(storage.fetch(old.previous.release.url), old.previous.release.digest)
    return _publish(url, old.model_copy(update={"current": old.previous, "previous": _stopped(old.current)}))


def refuse(url: str, release: str, reason: str) -> Pointer:
    """Note why a candidate was not promoted; who takes traffic stays as it is."""
    refusal = Refusal(release=release, reason=reason, at=datetime.now(UTC))
    old = read(url)
    return _publish(url, old.model_copy(update={"refusals": (*old.refusals, refusal)[-REFUSALS_KEPT:]}))


@contextmanager
def on_trial(url: str, release: str) -> Iterator[None]:
    """A block that ends in promotion; if it breaks, the reason is noted and the pointer stays."""
    try:
        yield
    except Exception as error:
        refuse(url, release, f"{type(error).__name__}: {error}")
        current = read(url).current
        kept = (
            f"release {current.release.digest[:12]} keeps the traffic" if current else "nothing is deployed"
        )
        logger.error("release %s not promoted; %s", release[:12], kept)
        raise


def _stopped(deployment: Deployment | None) -> Deployment | None:
    """A deployment that no longer takes traffic answers nowhere."""
    return deployment and deployment.model_copy(update={"endpoint": None, "server": None})


def _publish(url: str, pointer: Pointer) -> Pointer:
    storage.write_json(url, pointer.model_dump(mode="json"))
    return pointer
