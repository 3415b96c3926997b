"""An object store that is away for a while, or too busy for some requests: a proxy before the real server."""

import contextlib
import http.client
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"

REPLACED = ("transfer-encoding", "content-length", "expect", "connection")
"""Headers that are between two neighbours alone."""

CALM_SECONDS = 20.0
"""The least time from one outage's end to the next one's start, in which drivers renew their leases."""


class UnreliableStore:
    """Passes requests on, unless it is away or busy."""

    def __init__(self, target: str, seed: int) -> None:
        """Stand before the server at `target`, `http://host:port`."""
        self._host = urlsplit(target).netloc
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._back, self._share = -CALM_SECONDS, 0.0
        self.answered = self.refused = self.cut_off = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if self.raw_requestline and self.parse_request():
                    store.answer(self)
                else:
                    self.close_connection = True

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def leave(self, seconds: float) -> bool:
        """Cut off every connection from now on, for so long; return whether an outage began.

        None begins within the one before or soon after: together they would be one that lasts for longer.
        """
        if time.monotonic() < self._back + CALM_SECONDS:
            return False
        self._back = time.monotonic() + seconds
        return True

    def wait_until_back(self) -> None:
        """Return once no outage is going on."""
        time.sleep(max(0.0, self._back - time.monotonic()))

    def be_busy(self, share: float) -> None:
        """Answer this share of the requests with 503."""
        self._share = share

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        if time.monotonic() < self._back:
            self.cut_off += 1
            request.close_connection = True
            return
        body = _body(request)
        with self._lock:
            busy = self._random.random() < self._share
        if busy:
            self.refused += 1
            status, headers, content = 503, [("Content-Type", "application/xml")], SLOW_DOWN
        else:
            self.answered += 1
            status, headers, content = self._passed_on(request, body)
        request.send_response_only(status)
        for key, value in headers:
            if key.lower() not in ("content-length", "transfer-encoding", "connection"):
                request.send_header(key, value)
        length = next((value for key, value in headers if key.lower() == "content-length"), str(len(content)))
        request.send_header("Content-Length", length if request.command == "HEAD" else str(len(content)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)

    def _passed_on(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        with contextlib.closing(connection):
            kept = {key: value for key, value in request.headers.items() if key.lower() not in REPLACED}
            connection.request(request.command, request.path, body, {**kept, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """Return a request's body, which comes in one piece or in chunks."""
    if "chunked" not in request.headers.get("Transfer-Encoding", ""):
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))
    chunks = []
    while size := int(request.rfile.readline().split(b";")[0], 16):
        chunks.append(request.rfile.read(size))
        request.rfile.readline()
    while request.rfile.readline().strip():
        pass  # what follows the last chunk
    return b"".join(chunks)


@contextlib.contextmanager
def unreliable_store(target: str, seed: int) -> Iterator[UnreliableStore]:
    """An unreliable store that lasts as long as the context."""
    store = UnreliableStore(target, seed)
    try:
        yield store
    finally:
        store.close()
