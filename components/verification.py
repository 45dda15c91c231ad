"""Is this thing what its manifest says? One question for data sets, checkpoints, releases and whole runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from components import storage
from components.checkpoints.check import check_path
from components.data import integrity
from components.data import manifest as manifests
from components.errors import ConfigError, ShardIntegrityError, StanchionError
from components.records import Record, Verdict
from components.serving import release

SHARDS_GATE = "shards_match_manifest"
Judged = tuple[str, list[Verdict]]
Progress = Callable[[int, int], None]
"""Told the bytes of a data set that were read, and those there are."""


def verify(url: str, on_progress: Progress | None = None) -> Iterator[Judged]:
    """Each thing found at `url`, by its name, with what its gates and digests say.

    A data set has a verdict for every fault; its figures name data set, shard, key and offset.
    """
    url = url.rstrip("/")
    if not storage.exists(url):
        raise ConfigError(f"nothing at {url}; give the folder of a data set, checkpoint, release or run")
    known = set(storage.listing(url))
    if "records" in known:
        yield from _run(url, on_progress)
    elif "release.json" in known:
        yield _name(url), [_release(url)]
    elif "manifest.json" in known:
        yield _name(url), _manifest(url, on_progress)
    else:
        yield from _each_in(url, sorted(known), on_progress)


def damaged_data_sets(verdicts: list[Verdict]) -> list[str]:
    """Where the data sets lie that hold shards to build again."""
    found = (one.figures.get("data_set") for one in verdicts if one.gate == SHARDS_GATE and not one.passed)
    return list(dict.fromkeys(str(url) for url in found if url))


def _each_in(url: str, names: list[str], on_progress: Progress | None) -> Iterator[Judged]:
    """A folder of checkpoints: each that has a manifest."""
    sealed = [name for name in names if "manifest.json" in storage.listing(storage.join(url, name))]
    if not sealed:
        raise ConfigError(f"{url} holds no manifest.json, release.json or records/: nothing vouches for it")
    for name in sealed:
        yield name, _manifest(storage.join(url, name), on_progress)


def _run(url: str, on_progress: Progress | None) -> Iterator[Judged]:
    """Everything that the records of a run say they made in its folder, wherever the folder lies now."""
    folder = storage.join(url, "records")
    for name in storage.listing(folder):
        record = Record.model_validate(storage.read_json(storage.join(folder, name)))
        for artifact in record.outputs:
            _, inside, place = artifact.url.partition(f"/{record.run_id}/")
            if inside:
                yield from _artifact(artifact.name, storage.join(url, place), on_progress)


def _artifact(name: str, url: str, on_progress: Progress | None) -> Iterator[Judged]:
    known = set(storage.listing(url))
    if not storage.exists(url):
        yield name, [Verdict(gate="is_there", passed=False, reason=f"its record names {url}, which is gone")]
    elif {"manifest.json", "release.json"} & known:
        yield from verify(url, on_progress)


def _manifest(url: str, on_progress: Progress | None) -> list[Verdict]:
    """A manifest that lists shards is a data set's, one that lists tensors a checkpoint's."""
    if _is_checkpoint(url):
        return check_path(storage.fetch(url))
    return _data_set(url, on_progress)


def _is_checkpoint(url: str) -> bool:
    """Whatever is no JSON is left to the data set's reader, which says so."""
    try:
        return "tensors" in storage.read_json(storage.join(url, "manifest.json"))
    except ValueError:
        return False


def _data_set(url: str, on_progress: Progress | None) -> list[Verdict]:
    """Every fault of a data set, or one line on how much was read."""
    try:
        manifest = manifests.read(url)
        faults = integrity.faults_of(url, on_progress=on_progress)
    except StanchionError as error:
        return [Verdict(gate=SHARDS_GATE, passed=False, reason=str(error))]
    if faults:
        shards = {name for shard in manifest.shards for name in (shard.name, shard.index_name)}
        return [_fault(url, fault, mendable=fault.shard in shards) for fault in faults]
    total = sum(entry.bytes for entry in manifest.entries().values())
    reason = f"{len(manifest.shards)} shards match, {total} bytes were read"
    figures: dict[str, float | int | str | bool | None] = {"shards": len(manifest.shards), "bytes": total}
    return [Verdict(gate=SHARDS_GATE, passed=True, reason=reason, figures=figures)]


def _fault(url: str, fault: ShardIntegrityError, *, mendable: bool) -> Verdict:
    figures: dict[str, float | int | str | bool | None] = {
        "data_set": url if mendable else "",
        "shard": fault.shard,
        "key": fault.key,
        "offset": fault.offset,
    }
    return Verdict(gate=SHARDS_GATE, passed=False, reason=str(fault), figures=figures)


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
