"""An object store that misbehaves on request: a proxy in front of a real S3 server.

Late answers, errors, lost connections, cut bodies, old lists and ignored conditions each strike a share of
the requests, drawn from a seeded generator. What struck is counted: a test compares counts, not times.

    with serve(address, Faults(error_share=0.1)) as store:
        ...                       # store.url is what a client is given
        store.faults = Faults()   # from now on a good store
        store.counts["errors"]
"""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "te", "upgrade"}
CODES = {403: "AccessDenied", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}


@dataclass(frozen=True)
class Faults:
    """What goes wrong; shares are of the requests that match."""

    slow_share: float = 0.0
    slow_seconds: float = 0.5

    error_share: float = 0.0
    """Answered with an error before the request reaches the store."""

    error_status: int = 503
    """Which: one of `CODES`."""

    lost_answer_share: float = 0.0
    """The store does what it is asked, the client hears 503: it cannot know."""

    reset_share: float = 0.0
    """The connection closes without an answer."""

    cut_share: float = 0.0
    """Half of the body is sent, then the connection closes."""

    short_share: float = 0.0
    """Half of the body is sent, and the header says that this was all."""

    stale_lists: bool = False
    """A list request is answered as it was the first time."""

    ignores_conditions: bool = False
    """`If-None-Match` and `If-Match` never reach the store."""

    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE")
    """Which requests the shares are of."""


@dataclass
class FaultyStore:
    """A running proxy: where it is, what it does wrong, what it did."""

    upstream: str
    faults: Faults
    url: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    """Requests by method, faults by kind, and `bytes` of bodies sent to clients."""
    lists: dict[str, Answer] = field(default_factory=dict)
    seed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def strikes(self, kind: str, share: float, method: str) -> bool:
        """Draw whether a fault strikes this request, and count it."""
        with self.lock:
            struck = method in self.faults.methods and self.random.random() < share
            self.counts[kind] += struck
            return struck

    def count(self, kind: str, amount: int = 1) -> None:
        """Add to a count."""
        with self.lock:
            self.counts[kind] += amount


@dataclass(frozen=True)
class Answer:
    """What a store said."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@contextlib.contextmanager
def serve(upstream: str, faults: Faults | None = None, *, seed: int = 0) -> Iterator[FaultyStore]:
    """A faulty store in front of the one at `upstream` (`http://host:port`), while the block lasts."""
    store = FaultyStore(upstream, faults or Faults(), seed=seed)
    server = _Server(store)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, store: FaultyStore) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is no news here: hedged requests are cancelled that way."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16  # head and body in one packet: two would wait 40 ms for each other
    server: _Server
    timeout = 60

    def handle_expect_100(self) -> bool:
        """Let a client send its body at once."""
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing; the counts tell."""

    def answer(self) -> None:
        """Pass one request on, unless and until a fault strikes it."""
        store, faults = self.server.store, self.server.store.faults
        length = int(self.headers.get("Content-Length") or 0)
        body = self._decoded(length)
        store.count(self.command)
        if store.strikes("slow", faults.slow_share, self.command):
            time.sleep(faults.slow_seconds)
        if store.strikes("resets", faults.reset_share, self.command):
            self.close_connection = True
            return
        if store.strikes("errors", faults.error_share, self.command):
            self._send(_error(faults.error_status))
            return
        answer = self._stale() or self._forward(body)
        if store.strikes("lost_answers", faults.lost_answer_share, self.command):
            answer = _error(503)
        self._send_damaged(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def _decoded(self, length: int) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(length)
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _forward(self, body: bytes) -> Answer:
        store = self.server.store
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        if store.faults.ignores_conditions:
            for name in [name for name in headers if name.lower() in ("if-none-match", "if-match")]:
                del headers[name]
                store.count("conditions_ignored")
        where = urlsplit(store.upstream)
        upstream = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            upstream.request(self.command, self.path, body=body or None, headers=headers)
            response = upstream.getresponse()
            kept = {k.lower(): v for k, v in response.getheaders() if k.lower() not in HOP}
            if self.command == "HEAD":
                kept["content-length"] = response.getheader("Content-Length") or "0"
            answer = Answer(response.status, tuple(kept.items()), response.read())
        finally:
            upstream.close()
        if self._lists():
            store.lists.setdefault(self.path, answer)
        return answer

    def _lists(self) -> bool:
        return self.command == "GET" and "list-type" in parse_qs(urlsplit(self.path).query)

    def _stale(self) -> Answer | None:
        store = self.server.store
        known = store.lists.get(self.path) if store.faults.stale_lists and self._lists() else None
        store.count("stale", known is not None)
        return known

    def _send_damaged(self, answer: Answer) -> None:
        store, faults = self.server.store, self.server.store.faults
        data = self.command == "GET" and len(answer.body) > 1 and answer.status in (200, 206)
        if data and store.strikes("short", faults.short_share, self.command):
            half = answer.body[: len(answer.body) // 2]
            sums = ("x-amz-checksum", "content-range", "etag")
            kept = tuple((k, v) for k, v in answer.headers if not k.startswith(sums))
            self._send(Answer(answer.status, kept, half))
        elif data and store.strikes("cut", faults.cut_share, self.command):
            self._send(answer, sent=len(answer.body) // 2)
            self.close_connection = True
        else:
            self._send(answer)

    def _send(self, answer: Answer, sent: int | None = None) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[:sent])
            self.server.store.count("bytes", len(answer.body[:sent]))


def _error(status: int) -> Answer:
    body = f"<Error><Code>{CODES[status]}</Code><Message>on purpose</Message></Error>"
    return Answer(status, (("content-type", "application/xml"),), body.encode())
