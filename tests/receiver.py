"""A webhook on loopback that keeps what it is sent, and can answer with an error, elsewhere, or never."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """What came in: a path and a message each."""

    def __init__(self, answers: Sequence[int], hangs: bool) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.released = threading.Event()
        answers_left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805 - `self` is the receiver
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                assert handler.headers["Content-Type"] == "application/json"
                self.messages.append((handler.path, json.loads(body)))
                if hangs:
                    self.released.wait(30)
                    return
                code = answers_left.pop(0) if len(answers_left) > 1 else answers_left[0]
                handler.send_response(code)
                if 300 <= code < 400:
                    handler.send_header("Location", "/elsewhere")
                handler.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(handler, *words: Any) -> None:  # noqa: N805
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """The server's address, without a path."""
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The messages alone."""
        return [body for _, body in self.messages]


@contextmanager
def receiver(*answers: int, hangs: bool = False) -> Iterator[Receiver]:
    """Run a webhook that gives `answers` in turn, the last of them for ever, or that never answers."""
    received = Receiver(answers or (204,), hangs)
    thread = threading.Thread(target=received.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        received.released.set()
        received.server.shutdown()
        received.server.server_close()
        thread.join(5)
