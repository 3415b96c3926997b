"""A real sweep among planted secrets: none shows in any byte of what it writes, prints, or leaves with Ray."""

import base64
import gzip
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import planted
from tests.faults.cluster import local_cluster
from tests.running import command, in_process, write_space
from tests.sweeper.inline_sweep import Inline

TINY = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 2, grace_epochs: 1, reduction_factor: 3}
samples: 3
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {name: mlp, width: 16}
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9, batch_size: 64}
evaluation: {bins: 15, posthoc: [temperature], curvature: false, bootstrap: 0}
"""


@dataclass
class Echo:
    """An HTTP server that refuses everything and repeats in its answer who asked, as careless ones do."""

    port: int
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    heard = Echo(0)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            heard.asked.append(f"{self.path} {self.headers.get('Authorization', '')}")
            told = f"{self.headers.get('Authorization', 'nobody')} may not do this: {self.path}".encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield heard
    server.shutdown()
    server.server_close()


PAIR = ":".join(planted.IN_ADDRESSES.values())


class Scene:
    """Folders for commands that run among planted secrets, and what they printed."""

    def __init__(self, folder: Path, port: int) -> None:
        self.work, self.home = folder / "work", folder / "home"
        self.ray = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets lie there: a short path
        for made in (self.work, self.home):
            made.mkdir()
        self.space = write_space(self.work, TINY)
        self.mlflow = f"http://{PAIR}@127.0.0.1:{port}"
        self.printed = ""

    def run(self, *arguments: str | Path, code: int = 0, further: Mapping[str, str] | None = None) -> None:
        """Run a command, with further environment variables, and expect its exit status."""
        words, environment = command(*arguments), {**self._environment(), **(further or {})}
        done = subprocess.run(words, cwd=self.work, env=environment, capture_output=True, text=True, timeout=900)
        self._expect(done, code)

    def run_here(self, *arguments: str | Path, code: int = 0) -> None:
        """Run a command that starts nothing in this process, and expect its exit status."""
        with mock.patch.dict(os.environ, self._environment()):
            self._expect(in_process(*arguments, cwd=self.work), code)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **planted.ENVIRONMENT, "HOME": str(self.home), "RAY_TMPDIR": str(self.ray)}

    def _expect(self, done: subprocess.CompletedProcess[str], code: int) -> None:
        self.printed += done.stdout + done.stderr
        assert done.returncode == code, (done.args, done.stdout + done.stderr)
        assert "Traceback" not in done.stderr, done.stderr

    def check(self, files: int) -> None:
        """Search everything; at least so many files must be there."""
        found, size = planted.searched(self.work, self.home, self.ray)
        print(f"{len(planted.needles())} forms of secrets, {found} files, {size / 2**20:.1f} MiB: none")
        assert found >= files and len(self.printed) > 500
        assert planted.leaks(self.printed, self.work, self.home, self.ray) == []


@pytest.fixture
def scene(echo: Echo, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path, echo.port)
    yield made
    shutil.rmtree(made.ray, ignore_errors=True)


def basic(asked: list[str]) -> bool:
    """Whether the server was told the address's user and password, as it must be."""
    return any(base64.b64encode(PAIR.encode()).decode() in line for line in asked)


@pytest.mark.integration
def test_commands_on_a_sweep_show_no_secret(scene: Scene, echo: Echo) -> None:
    Inline(scene.work).run("small")
    echo.asked.clear()
    scene.run("manage", "sync", "small", "--tracking-uri", scene.mlflow, code=2)
    assert basic(echo.asked), "MLflow's server was asked"
    scene.run("manage", "sync", "small")
    scene.run_here("report", "small")
    scene.run_here("run", scene.space, "--output", f"s3://{PAIR}@bucket/sweeps", code=2)
    scene.run_here(
        "cluster",
        "submit",
        scene.space,
        "--dashboard",
        f"http://{PAIR}@127.0.0.1:1",
        "--output",
        "s3://b/sweeps",
        code=2,
    )
    scene.check(files=20)


@pytest.mark.slow
def test_a_whole_sweep_shows_no_secret(scene: Scene, echo: Echo) -> None:
    echo.asked.clear()
    scene.run("run", scene.space, "--tracking-uri", scene.mlflow)
    assert basic(echo.asked), "MLflow's server was asked"
    scene.run("run", scene.space, "--name", "here", "--set", "samples=1")
    scene.run("run", scene.space, "--name", "elsewhere", "--tracking-uri", f"postgresql://{PAIR}@127.0.0.1:1/mlflow")
    scene.run("status", "--audit", "small")
    scene.run("resume", "small", "--set", f"header.question={PAIR}", code=2)
    scene.check(files=60)


@pytest.mark.slow
def test_a_joined_cluster_gets_no_secret(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes were started without them, and what the driver knows stays with the driver."""
    monkeypatch.setenv("RAY_TMPDIR", str(scene.ray))
    with local_cluster(1, tmp_path) as cluster:
        token = {name: cluster.environment[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
        scene.run("run", scene.space, "--ray", cluster.address, "--no-mlflow", further=token)
    scene.check(files=60)


def test_the_search_finds_what_is_hidden(tmp_path: Path) -> None:
    secret = planted.ENVIRONMENT["MLFLOW_TRACKING_PASSWORD"]
    pq.write_table(pa.table({"text": [f"password {secret}"] * 3}), tmp_path / "a.parquet", compression="zstd")
    (tmp_path / "b.gz").write_bytes(gzip.compress(secret.encode()))
    (tmp_path / "c.json").write_text(base64.b64encode(secret.encode()).decode())
    (tmp_path / f"d-{secret}").touch()
    assert len({leak.partition(": ")[0] for leak in planted.leaks(tmp_path)}) == 4
    assert planted.leaks(f"--password={secret}") == ["text: MLFLOW_TRACKING_PASSWORD"]
    assert planted.leaks("nothing here") == []
