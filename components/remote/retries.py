"""Trying again, within a budget: what may pass is repeated, what is true is not, and an outage is not fed.

Pattern: Retry Budget
Problem: when a store falters, every client that repeats its requests multiplies the load that broke it.
Answer: at most a few attempts a request, waits drawn at random from a doubling range, and for each process no
more repetitions than a fifth of its requests; when either is spent, a typed error says what was tried.
Trade-off: under a lasting error rate above a fifth a process gives up where blind repetition might get by.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from components.errors import ConfigError, StorageError

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
PASSING_CODES = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
PASSING_ERRNO = {errno.EBUSY, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EREMOTEIO}
PASSING_CLASSES = {  # by name: none of their packages need be installed, let alone imported
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "ConnectionError",  # botocore has one of its own
    "FSTimeoutError",  # fsspec
    "FlexibleChecksumError",  # botocore: the body is not what its checksum says
    "HTTPClientError",
    "IncompleteRead",
    "IncompleteReadError",
    "ResponseParserError",
}

NOT_SET_UP = {"NoCredentialsError", "PartialCredentialsError", "NoAuthTokenError", "ProfileNotFound"}

Answer = TypeVar("Answer")
logger = logging.getLogger(__name__)


class Short(OSError):
    """Fewer bytes came or arrived than were asked for."""


class Denied(StorageError, PermissionError):
    """The store knows who asks, and says no."""


class Budget:
    """A token bucket: each request puts a share of a token in, each repetition takes a whole one out."""

    def __init__(self, share: float = 0.2, reserve: float = 20.0) -> None:
        self.share, self.reserve = share, reserve
        self.requests = self.repetitions = 0
        self._tokens = reserve
        self._lock = threading.Lock()

    def request(self) -> None:
        """Note a first attempt."""
        with self._lock:
            self.requests += 1
            self._tokens = min(self.reserve, self._tokens + self.share)

    def grants_repetition(self) -> bool:
        """Whether one more attempt is within the budget; if so it is taken."""
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            self.repetitions += 1
            return True


def persist(
    request: Callable[[], Answer],
    doing: str,
    url: str,
    *,
    budget: Budget,
    retries: int,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """The answer to a request, tried again while its errors may pass; others are raised at once."""
    budget.request()
    attempt = 0
    while True:
        attempt += 1
        try:
            return request()
        except Exception as error:
            if (explained := _explained(doing, url, error)) is not None:
                raise explained from error
            if not may_pass(error):
                raise
            if attempt > retries:
                raise _given_up(doing, url, attempt, error, "raise storage.retries") from error
            if not budget.grants_repetition():
                why = f"this process has spent its retry budget ({budget.share:.0%} of its requests)"
                raise _given_up(doing, url, attempt, error, why) from error
            logger.debug("%s %s, attempt %d: %s", doing, url, attempt, error)
            sleep(random.uniform(0, min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt)))


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError)):
        return False
    if isinstance(error, (Short, ConnectionError, TimeoutError)):
        return True
    if PASSING_CLASSES & {kind.__name__ for kind in type(error).__mro__}:
        return True
    status, code = answer_of(error)
    if status is not None:
        return status in PASSING_STATUS or code in PASSING_CODES
    return isinstance(error, OSError) and error.errno in PASSING_ERRNO


def answer_of(error: BaseException) -> tuple[int | None, str]:
    """HTTP status and S3 error code that a store answered with, wherever its client put them."""
    for one in _chain(error):
        response = getattr(one, "response", None)
        if isinstance(response, dict) and "Error" in response:  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response["Error"].get("Code", ""))
        for name in ("status", "status_code", "code"):  # aiohttp, azure, gcsfs
            if isinstance(status := getattr(one, name, None), int):
                return status, ""
    return None, ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__


def _explained(doing: str, url: str, error: Exception) -> Exception | None:
    """What a person can set right, in words; the clients' own errors do not even name the address."""
    if type(error).__name__ in NOT_SET_UP:
        return ConfigError(
            f"no credentials for {url}: {error}; export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set "
            f"AWS_PROFILE to one of ~/.aws/credentials"
        )
    if answer_of(error)[1] == "NoSuchBucket":
        return ConfigError(f"there is no bucket for {url}; create it, or name another")
    if isinstance(error, PermissionError):
        return Denied(
            f"{doing} {url} is not allowed: {error}; look at the credentials and the bucket's policy", url=url
        )
    return None


def _given_up(doing: str, url: str, attempts: int, error: Exception, hint: str) -> StorageError:
    cause = f"{type(error).__name__}: {error}"
    return StorageError(
        f"{doing} {url} failed {attempts} times, last with {cause}; the store is slow or down, or elsewhere: "
        f"wait and run again ({hint}), or name its address in storage.endpoint_url",
        url=url,
        attempts=attempts,
    )
