"""A metadata service of both clouds, as their documentation has it: strict about headers, silent until it warns."""

import contextlib
import datetime
import http.server
import json
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Metadata:
    """What the clouds would say of this machine, and who asked.

    Attributes:
        spot_ends: when AWS interrupts the instance; `None` is no notice.
        preempted, maintenance: Google's two values.
        out_of_order: answer everything with 503.
        asked: the paths that were asked for.
    """

    address: str = ""
    spot_ends: datetime.datetime | None = None
    preempted: str = "FALSE"
    maintenance: str = "NONE"
    out_of_order: bool = False
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Return status and text."""
        self.asked.append(path)
        if self.out_of_order:
            return 503, ""
        if path.startswith("/computeMetadata/v1/instance/"):
            if headers.get("metadata-flavor") != "Google":
                return 403, ""
            said = {"preempted": self.preempted, "maintenance-event": self.maintenance}
            return (200, said[path.rpartition("/")[2]]) if path.rpartition("/")[2] in said else (404, "")
        if (method, path) == ("PUT", "/latest/api/token"):
            if not 1 <= int(headers.get("x-aws-ec2-metadata-token-ttl-seconds", "0")) <= 21600:
                return 400, ""
            self.tokens.add(secrets.token_hex())
            return 200, [*self.tokens][-1]
        if headers.get("x-aws-ec2-metadata-token") not in self.tokens:
            return 401, ""
        if path == "/latest/meta-data/spot/instance-action" and self.spot_ends is not None:
            return 200, json.dumps({"action": "terminate", "time": f"{self.spot_ends:%FT%TZ}"})
        return 404, ""


@contextlib.contextmanager
def metadata_service() -> Iterator[Metadata]:
    """Run the service on a free port of this machine."""
    metadata = Metadata()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply()

        def do_PUT(self) -> None:
            self.reply()

        def reply(self) -> None:
            """Answer as the clouds would."""
            headers = {key.lower(): value for key, value in self.headers.items()}
            status, text = metadata.answer(self.command, self.path, headers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        metadata.address = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield metadata
        finally:
            server.shutdown()
