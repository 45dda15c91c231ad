"""The fsspec file system behind a URL: only protocols we know, and never one made before a fork.

A client made in a parent holds its threads, sockets and locks; used after a fork it hangs or mixes answers.
So all of this state hangs on the id of the process: a child finds none and makes its own.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from components.errors import ConfigError
from components.remote.hedging import Hedger
from components.remote.options import Config, options
from components.remote.retries import Budget

LOCAL = ("", "file", "local")
REMOTE = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf", "http", "https", "memory")
READ_ONLY = ("http", "https")
CONNECTIONS = 32
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")


@dataclass
class Process:
    """What one process knows of its stores."""

    budget: Budget = field(default_factory=Budget)
    hedger: Hedger = field(default_factory=Hedger)
    filesystems: dict[Any, Any] = field(default_factory=dict)
    refuses_overwrite: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether the store at (endpoint, bucket) was seen to honour If-None-Match."""
    refuses_stale: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether it was seen to honour If-Match."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@cache
def _process(pid: int) -> Process:
    return Process()


def process() -> Process:
    """State of this process; a forked child starts with a fresh one, and leaves its parent's alone."""
    return _process(os.getpid())


def forget() -> None:
    """Drop this process's clients, budget and figures, for when credentials or the endpoint have changed."""
    _process.cache_clear()


def protocol_of(url: str) -> str:
    """Protocol of a URL, "" for a plain path; one that is not on the list is refused, and nothing is run."""
    scheme = SCHEME.match(url)
    found = scheme[1].lower() if scheme else ""
    if found in LOCAL:
        return found
    if found not in REMOTE or "::" in url or not url[len(found) :].startswith("://"):
        raise ConfigError(
            f"{url!r} is not an address that storage opens; use a local path, file://, or one of "
            f"{', '.join(name + '://' for name in REMOTE)}, not chained with ::; "
            f"write a local name with a colon as ./NAME"
        )
    return found


def filesystem(url: str) -> tuple[Any, str]:
    """This process's file system for a remote URL, and the path of the URL in it."""
    protocol, config = protocol_of(url), options()
    kind = _class(protocol)
    from_url = kind._get_kwargs_from_urls(url)
    key = (protocol, repr(from_url), config, os.environ.get("AWS_ENDPOINT_URL"))
    own = process()
    with own.lock:
        if key not in own.filesystems:
            own.filesystems[key] = _make(kind, protocol, from_url, config)
    return own.filesystems[key], str(kind._strip_protocol(url))


def writable(url: str) -> None:
    """An error for a URL that can only be read."""
    if protocol_of(url) in READ_ONLY:
        raise ConfigError(f"{url} can only be read; write to a local path or a bucket")


def _class(protocol: str) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ConfigError(
            f"{protocol}:// needs a package that is not installed ({error}); for s3:// run "
            f"`pip install 'stanchion[cluster]'`"
        ) from error


def _make(kind: Any, protocol: str, from_url: dict[str, Any], config: Config) -> Any:
    given: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True, **from_url}
    if protocol not in ("s3", "s3a"):
        return kind(**given)
    import fsspec

    users = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    given["config_kwargs"] = {
        "connect_timeout": min(config.timeout_seconds, 10),
        "read_timeout": config.timeout_seconds,
        "max_pool_connections": CONNECTIONS,
        **users,
        "retries": {"total_max_attempts": 1},
    }
    if config.endpoint_url:
        given["endpoint_url"] = config.endpoint_url
    made = kind(**given)
    made.retries = 1  # s3fs and botocore repeat on their own; then no budget would hold
    return made
