"""How storage behaves: set once by `use`, inherited by every process that starts from there.

The settings travel in the environment, so ranks under torchrun, data loader workers, forked or spawned, and
sub-processes all see what their parent saw, without an argument in every call.

Amazon S3: credentials from wherever its own tools take them (`AWS_PROFILE`, `AWS_ACCESS_KEY_ID` and
`AWS_SECRET_ACCESS_KEY`, a role of the machine), the region from `AWS_DEFAULT_REGION`; then

    stanchion run shard_dataset --set profile.storage.root=s3://bucket/runs
    stanchion check s3://bucket/runs/NAME/shards

MinIO, Ceph or another server: the same, and its address, for all commands in the environment

    export AWS_ENDPOINT_URL=http://minio:9000 AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...

or for runs alone by `--set profile.storage.endpoint_url=http://minio:9000`. The bucket must exist. `scratch`
and `cache` are local folders: the first holds a data set until it is uploaded, the second keeps copies of the
shards that are read. No secret belongs into a profile: records keep the settings of a run.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from components import plugins

VARIABLE = "STANCHION_STORAGE"


class Config(plugins.Config):
    """Where run folders live, and how patient we are with what is not on this machine."""

    root: str = Field(default="runs", min_length=1)
    """Local folder or any fsspec URL (`s3://bucket/runs`) under which each run gets a folder."""

    scratch: str | None = None
    """Local folder for what is still being written; default: beside the run when the root is local."""

    endpoint_url: str | None = None
    """Address of an S3 server other than Amazon's (Ceph, MinIO); default: what AWS_ENDPOINT_URL says."""

    retries: int = Field(default=5, ge=0, le=20)
    """Further attempts at one request after an error that may pass: a timeout, a reset, a 5xx, a 429."""

    timeout_seconds: float = Field(default=30.0, gt=0, le=600)
    """Longest wait for a connection, and for the next bytes of an answer."""

    hedge_after_seconds: float | None = Field(default=None, gt=0, le=600)
    """Wait before a ranged read is asked for a second time; default: twice the 95th percentile so far."""

    hedge_share: float = Field(default=0.05, ge=0, le=1)
    """Most bytes asked for twice, as a share of all bytes asked for; 0 turns second requests off."""

    cache: str | None = None
    """Local folder for copies of remote shards; default: `stanchion` in XDG_CACHE_HOME or ~/.cache."""

    cache_bytes: int = Field(default=20 * 2**30, ge=2**20)
    """Size of that folder; the copies used longest ago make room. Must hold one shard for each reader."""

    @property
    def cache_folder(self) -> Path:
        """Where copies of remote files lie."""
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(self.cache).absolute() if self.cache else Path(home) / "stanchion"


def use(config: Config) -> None:
    """From now on, here and in every process started from here, storage behaves like this."""
    os.environ[VARIABLE] = config.model_dump_json()


def inherited() -> dict[str, str]:
    """What a process elsewhere needs in its environment to behave like this one."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}


def options() -> Config:
    """What the nearest `use` above this process said; the defaults when there was none."""
    return _parse(os.environ.get(VARIABLE, "{}"))


@lru_cache(maxsize=8)
def _parse(text: str) -> Config:
    return Config.model_validate_json(text)
