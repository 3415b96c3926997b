"""The server as users start it, and a client that sends what it is told, however odd."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.patience import patient


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Served:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    address: str
    port: int

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
        """Return the answer to a request whose path is sent as it is."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(30))
        client.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = client.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        client.close()
        return found

    def wait_for(self, path: str, text: str, seconds: float = 20, **headers: str) -> str:
        """Return a page once it has this text."""
        end = time.monotonic() + patient(seconds)
        while text not in (found := self.ask(path, **headers).text):
            assert time.monotonic() < end, f"{path} never said {text!r}: {found[-3000:]}"
            time.sleep(0.1)
        return found

    def events(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the events of a stream: kind and text."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(30))
        client.request("GET", path)
        answer, kind, lines = client.getresponse(), "", list[str]()
        for raw in answer:
            line = raw.decode().rstrip("\n")
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
            lines += [line.removeprefix("data: ")] if line.startswith("data: ") else []
            if not line and kind:
                yield kind, "\n".join(lines)
                kind, lines = "", []


@contextmanager
def served(output: Path | str, cache: Path, *options: str) -> Iterator[Served]:
    """Give a server of the sweeps in `output`; it ends with the block."""
    command = [sys.executable, "-m", "sweeper", "serve", "--output", str(output), "--port", "0", *options]
    environment = {**os.environ, "SWEEPER_CACHE": str(cache)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        address = said.partition(": ")[2].split()[0]
        try:
            yield Served(process, address, int(address.rpartition(":")[2]))
        finally:
            process.terminate()
            process.wait(patient(20))
