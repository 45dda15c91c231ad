"""Is this thing what its manifest says? One question for data sets, checkpoints, releases and whole runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from components import storage
from components.checkpoints.check import check_path
from components.data.integrity import check_dataset
from components.errors import ConfigError, StanchionError
from components.records import Record, Verdict
from components.serving import release

Judged = tuple[str, list[Verdict]]


def verify(url: str) -> Iterator[Judged]:
    """Each thing found at `url`, by its name, with what its gates and digests say."""
    url = url.rstrip("/")
    if not storage.exists(url):
        raise ConfigError(f"nothing at {url}; give the folder of a data set, checkpoint, release or run")
    known = set(storage.listing(url))
    if "records" in known:
        yield from _run(url)
    elif "release.json" in known:
        yield _name(url), [_release(url)]
    elif "manifest.json" in known:
        yield _name(url), _manifest(url)
    else:
        yield from _each_in(url, sorted(known))


def _each_in(url: str, names: list[str]) -> Iterator[Judged]:
    """A folder of checkpoints: each that has a manifest."""
    sealed = [name for name in names if "manifest.json" in storage.listing(storage.join(url, name))]
    if not sealed:
        raise ConfigError(f"{url} holds no manifest.json, release.json or records/: nothing vouches for it")
    for name in sealed:
        yield name, _manifest(storage.join(url, name))


def _run(url: str) -> Iterator[Judged]:
    """Everything that the records of a run say they made in its folder, wherever the folder lies now."""
    folder = storage.join(url, "records")
    for name in storage.listing(folder):
        record = Record.model_validate(storage.read_json(storage.join(folder, name)))
        for artifact in record.outputs:
            _, inside, place = artifact.url.partition(f"/{record.run_id}/")
            if inside:
                yield from _artifact(artifact.name, storage.join(url, place))


def _artifact(name: str, url: str) -> Iterator[Judged]:
    known = set(storage.listing(url))
    if not storage.exists(url):
        yield name, [Verdict(gate="is_there", passed=False, reason=f"its record names {url}, which is gone")]
    elif {"manifest.json", "release.json"} & known:
        yield from verify(url)


def _manifest(url: str) -> list[Verdict]:
    """A manifest that lists shards is a data set's, one that lists tensors a checkpoint's."""
    if "tensors" not in storage.read_json(storage.join(url, "manifest.json")):
        return [_asked("shards_match_manifest", lambda: f"{len(check_dataset(url).shards)} shards match")]
    return check_path(storage.fetch(url))


def _release(url: str) -> Verdict:
    folder = storage.fetch(url)
    return _asked("files_match_release", lambda: f"{len(release.verify(folder).files)} files match")


def _asked(gate: str, claim: Callable[[], str]) -> Verdict:
    try:
        return Verdict(gate=gate, passed=True, reason=claim())
    except StanchionError as error:
        return Verdict(gate=gate, passed=False, reason=str(error))


def _name(url: str) -> str:
    return url.rpartition("/")[2]
