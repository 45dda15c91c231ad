"""What S3 needs beyond fsspec: conditional puts, probed before they are trusted, and uploads in parts.

Several servers accept `If-None-Match: *` or `If-Match: <version>` and overwrite all the same. So the first
conditional put to a bucket is preceded by puts to a throw-away key, of which one must be refused. Where it is
not, we look before we put, say so once, and a race between two writers stays possible.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from components.errors import Conflict
from components.remote import filesystems
from components.remote.options import options
from components.remote.retries import answer_of, persist

PART_BYTES = 16 << 20
MAX_PARTS = 10_000
UPLOADS_AT_ONCE = 4
WRITER = "stanchion-writer"

logger = logging.getLogger(__name__)


def create(filesystem: Any, path: str, content: bytes, url: str) -> None:
    """Put an object that is not there yet; FileExistsError when it is."""
    if honours_conditions(filesystem, path, url):
        _put_if(filesystem, path, content, url, condition={"IfNoneMatch": "*"}, refusal=_exists(url))
        return
    bucket, key, _ = filesystem.split_path(path)
    try:
        _ask(filesystem, "head_object", url, Bucket=bucket, Key=key)
    except FileNotFoundError:
        _ask(filesystem, "put_object", url, Bucket=bucket, Key=key, Body=content)
        return
    raise _exists(url)


def version(filesystem: Any, path: str, url: str) -> str | None:
    """What S3 calls the present content of an object (its ETag); None when there is no object."""
    bucket, key, _ = filesystem.split_path(path)
    try:
        return str(_ask(filesystem, "head_object", url, Bucket=bucket, Key=key)["ETag"])
    except FileNotFoundError:
        return None


def replace(filesystem: Any, path: str, content: bytes, url: str, known: str) -> None:
    """Put an object in place of the version that is known; Conflict when it is another by now."""
    if honours_versions(filesystem, path, url):
        _put_if(filesystem, path, content, url, condition={"IfMatch": known}, refusal=_changed(url))
        return
    if version(filesystem, path, url) != known:
        raise _changed(url)
    bucket, key, _ = filesystem.split_path(path)
    _ask(filesystem, "put_object", url, Bucket=bucket, Key=key, Body=content)


def honours_versions(filesystem: Any, path: str, url: str) -> bool:
    """Whether this store refuses a put over another version; asked once for an endpoint and bucket."""
    bucket, _, _ = filesystem.split_path(path)
    key = (str(filesystem.s3.meta.endpoint_url), bucket)
    known = filesystems.process().refuses_stale
    if key not in known:
        known[key] = _probe(filesystem, path, url, {}, {"IfMatch": '"00000000000000000000000000000000"'})
        if not known[key]:
            logger.warning(
                "the store at %s ignores If-Match on bucket %s: pointers and states are looked at before "
                "they are replaced, and two writers at the same moment may both succeed",
                *key,
            )
    return known[key]


def honours_conditions(filesystem: Any, path: str, url: str) -> bool:
    """Whether this store refuses a create-only put over an object; asked once for an endpoint and bucket."""
    bucket, _, _ = filesystem.split_path(path)
    key = (str(filesystem.s3.meta.endpoint_url), bucket)
    known = filesystems.process().refuses_overwrite
    if key not in known:
        known[key] = _probe(filesystem, path, url, {"IfNoneMatch": "*"}, {"IfNoneMatch": "*"})
        if not known[key]:
            logger.warning(
                "the store at %s ignores If-None-Match on bucket %s: create-only writes look before they "
                "put, and two writers at the same moment may both succeed",
                *key,
            )
    return known[key]


def upload(filesystem: Any, source: Path, path: str, url: str) -> None:
    """Put a local file: one request when small, else parts; the object appears whole, or not at all."""
    bucket, key, _ = filesystem.split_path(path)
    size = source.stat().st_size
    if size <= 2 * PART_BYTES:
        _ask(filesystem, "put_object", url, Bucket=bucket, Key=key, Body=source.read_bytes())
        return
    named = {"Bucket": bucket, "Key": key}
    named["UploadId"] = _ask(filesystem, "create_multipart_upload", url, **named)["UploadId"]
    try:
        parts = _upload_parts(filesystem, source, url, named)
        _complete(filesystem, url, named, parts, size)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to tell
            _ask(filesystem, "abort_multipart_upload", url, **named)
        raise


def _upload_parts(filesystem: Any, source: Path, url: str, named: dict[str, str]) -> list[dict[str, Any]]:
    size = source.stat().st_size
    step = max(PART_BYTES, -(-size // MAX_PARTS))

    def send(number: int) -> dict[str, Any]:
        with source.open("rb") as file:
            file.seek((number - 1) * step)
            body = file.read(step)
        done = _ask(filesystem, "upload_part", url, PartNumber=number, Body=body, **named)
        return {"PartNumber": number, "ETag": done["ETag"]}

    with ThreadPoolExecutor(UPLOADS_AT_ONCE) as pool:
        sent = [pool.submit(send, number) for number in range(1, -(-size // step) + 1)]
        try:
            return [one.result() for one in sent]
        finally:
            for one in sent:
                one.cancel()


def _complete(
    filesystem: Any, url: str, named: dict[str, str], parts: list[dict[str, Any]], size: int
) -> None:
    try:
        _ask(filesystem, "complete_multipart_upload", url, MultipartUpload={"Parts": parts}, **named)
    except FileNotFoundError:  # a repeated request finds no upload when the answer to the first was lost
        found = _ask(filesystem, "head_object", url, Bucket=named["Bucket"], Key=named["Key"])
        if found["ContentLength"] != size:
            raise


def _put_if(
    filesystem: Any,
    path: str,
    content: bytes,
    url: str,
    *,
    condition: dict[str, str],
    refusal: FileExistsError | Conflict,
) -> None:
    """A put under a condition. It is signed, so a repetition after a lost answer knows its own object."""
    bucket, key, _ = filesystem.split_path(path)
    named, writer = {"Bucket": bucket, "Key": key}, uuid.uuid4().hex
    try:
        _ask(filesystem, "put_object", url, Body=content, Metadata={WRITER: writer}, **condition, **named)
    except OSError as error:
        if not _refused(error):
            raise
        found = _ask(filesystem, "head_object", url, **named) if not _gone(error) else {}
        if found.get("Metadata", {}).get(WRITER) != writer:
            raise refusal from None


def _probe(filesystem: Any, path: str, url: str, first: dict[str, str], second: dict[str, str]) -> bool:
    """Two puts to one key, of which the second must be refused."""
    with _throw_away(filesystem, path, url) as named:
        for condition in (first, second):
            try:
                _ask(filesystem, "put_object", url, Body=b"probe", **condition, **named)
            except OSError as error:
                if _refused(error):
                    return True
                if answer_of(error)[0] == 501:  # not implemented, and said so
                    return False
                raise
    return False


@contextlib.contextmanager
def _throw_away(filesystem: Any, path: str, url: str) -> Iterator[dict[str, str]]:
    bucket, key, _ = filesystem.split_path(path)
    folder, slash, _ = key.rpartition("/")
    named = {"Bucket": bucket, "Key": f"{folder}{slash}.probe-{uuid.uuid4().hex}"}
    try:
        yield named
    finally:
        _ask(filesystem, "delete_object", url, **named)


def _ask(filesystem: Any, method: str, url: str, **arguments: Any) -> Any:
    return persist(
        lambda: filesystem.call_s3(method, **arguments),
        method.replace("_", " "),
        url,
        budget=filesystems.process().budget,
        retries=options().retries,
    )


def _refused(error: OSError) -> bool:
    """The condition did not hold; a put over a version of what is gone is answered by 404."""
    return isinstance(error, FileExistsError) or answer_of(error)[0] == 412 or _gone(error)


def _gone(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError)


def _changed(url: str) -> Conflict:
    return Conflict(f"{url} was changed by someone else meanwhile; read it again", url=url)


def _exists(url: str) -> FileExistsError:
    return FileExistsError(f"{url} is there already, and it is written once only")
