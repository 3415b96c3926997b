"""What a sweep on a cluster needs, for real, on this machine: an S3 server, and Ray nodes at addresses of their own."""

import base64
import contextlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from pathlib import Path

import pytest
from pyarrow import fs

from tests.faults.processes import below, kill_ids
from tests.mlflow_stores import free_port
from tests.patience import patient

BUCKET = "sweeps"

STARTS = 4
"""Ray gives a node 30 s to start, whatever the machine is busy with; one that was given up is started again."""

STARTED = "will now block forever"

DEATHS = {
    # A dead node is noticed within 10 s instead of half a minute; a busy machine's slow answers are no deaths.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
    # It looks at the whole machine's memory, which others fill as well.
    "RAY_memory_monitor_refresh_ms": "0",
}


def wait_until(reached: object, seconds: float, what: str) -> None:
    """Wait until `reached()` is true; fails after `seconds`."""
    deadline = time.monotonic() + patient(seconds)
    while not reached():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)


@contextlib.contextmanager
def s3_server(folder: Path, *, bucket: bool = True, **environment: str) -> Iterator[dict[str, str]]:
    """Run an S3-compatible server, with an empty bucket; give the environment in which it is found."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with (folder / "s3.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log, stderr=log, env={**os.environ, **environment},
        )  # fmt: skip
    try:
        wait_until(lambda: answers("127.0.0.1", port), 60, "the S3 server")
        files = fs.S3FileSystem(
            access_key="test", secret_key="test", endpoint_override=address, region="us-east-1",
            allow_bucket_creation=True,
        )  # fmt: skip
        if bucket:
            files.create_dir(BUCKET)
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        process.kill()
        process.wait()


ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's only account; everybody's key is the same and public."""


def azurite() -> str:
    """Return Azurite's program, Azure's blob store for one machine; installed from npm where it is missing."""
    found = shutil.which("azurite-blob")
    if found is None:
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("Azurite needs npm")
        folder = Path(tempfile.gettempdir()) / "azurite"
        found = str(folder / "node_modules" / ".bin" / "azurite-blob")
        if not Path(found).exists():
            command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "azurite@3"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                pytest.skip(f"npm cannot install Azurite: {done.stderr[-300:]}")
    return found


@contextlib.contextmanager
def azure_server(folder: Path) -> Iterator[dict[str, str]]:
    """Run Azurite, with an empty container; give the environment in which it is found."""
    port = free_port()
    command = [azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "azure")]
    with (folder / "azure.log").open("ab") as log:
        process = subprocess.Popen([*command, "--silent", "--skipApiVersionCheck"], stdout=log, stderr=log)
    try:
        wait_until(lambda: answers("127.0.0.1", port), 60, "Azurite")
        _create_container(port)
        yield {
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
        }
    finally:
        process.kill()
        process.wait()


def _create_container(port: int) -> None:
    """Create the container as Azure's REST interface has it: object_store's clients create none."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    named = "\n".join(f"{key}:{value}" for key, value in headers.items())
    text = f"PUT{chr(10) * 12}{named}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    signature = hmac.digest(base64.b64decode(ACCOUNT_KEY), text.encode(), "sha256")
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    address = f"http://127.0.0.1:{port}/{ACCOUNT}/{BUCKET}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, headers=headers, method="PUT"), timeout=30).close()


class RayNodes:
    """A Ray cluster whose nodes are processes of this machine, each at a loopback address of its own.

    Only the head has a dashboard and the driver's cache; where this machine lets us, workers do not see that folder.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Prepare a cluster that logs into `folder`, all nodes with `environment`."""
        self._folder, self._environment = folder, dict(environment)
        # Ray's sockets lie below this folder, and their paths must stay short.
        self._scratch = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.cache = folder / "head-cache"
        self.cache.mkdir()
        self.port, self._dashboard = free_port(), free_port()
        self.dashboard = f"http://127.0.0.2:{self._dashboard}"

    def start_head(self) -> None:
        """Start a head without cores, and wait until its Jobs API answers."""
        options = ["--head", f"--port={self.port}", "--num-cpus=0", "--include-dashboard=true"]
        options += ["--dashboard-host=127.0.0.2", f"--dashboard-port={self._dashboard}"]
        options += [f"--temp-dir={self._scratch}", f"--ray-client-server-port={free_port()}"]
        self._start("127.0.0.2", options, {"SWEEPER_CACHE": str(self.cache)})
        wait_until(lambda: answers("127.0.0.2", self._dashboard), 400, "the head's dashboard")

    def add(self, host: str, cpus: int = 1) -> None:
        """Add a node of `cpus` cores at the address `host`, which does not see the driver's folder."""
        if not can_hide():
            # Nodes that share a session folder take the names of its sockets one after the other.
            time.sleep(5)
        self._start(host, [f"--address=127.0.0.2:{self.port}", f"--num-cpus={cpus}"], {}, hidden=self.cache)

    def kill(self, host: str) -> int:
        """SIGKILL every process of a node at once; return how many there were."""
        process = self._nodes.pop(host)
        ids = [process.pid, *below(process.pid, "")]
        kill_ids(*ids)
        process.wait()
        return len(ids)

    def drain(self, host: str, token: str, seconds: int) -> None:
        """Tell the cluster that a node will be taken away in `seconds`, as a cloud's warning does."""
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address=127.0.0.2:{self.port}",
             f"--node-id={node_id(self.dashboard, token, host)}", "--reason=DRAIN_NODE_REASON_PREEMPTION",
             "--reason-message=spot capacity is taken back", f"--deadline-remaining-seconds={seconds}"],
            env=self._environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def end(self) -> None:
        """End every process of the cluster, the head last."""
        for host in reversed([*self._nodes]):
            self.kill(host)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self, host: str, options: list[str], environment: Mapping[str, str], hidden: Path | None = None) -> None:
        home = self._folder / f"home-{host}"
        (home / "ray").mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={host}"]
        command += ["--object-store-memory=80000000", f"--dashboard-agent-listen-port={free_port()}", *options]
        if hidden is not None and can_hide():
            # As on a machine of its own: neither Ray's session of the head nor the driver's folder is to be seen.
            script = 'mount --bind "$0" "$1" && mount -t tmpfs none "$2" && shift 2 && exec "$@"'
            places = [str(home / "ray"), str(self._scratch), str(hidden)]
            command = ["unshare", "--mount", "sh", "-c", script, *places, *command]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"HOME": str(home), "PATH": path, **DEATHS, **environment}
        out = self._folder / f"node-{host}.log"
        for _ in range(STARTS):
            with out.open("wb") as log:
                process = subprocess.Popen(
                    command, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**self._environment, **own},
                )  # fmt: skip
            self._nodes[host] = process
            wait_until(lambda: process.poll() is not None or STARTED in out.read_text(), 400, f"the node {host}")  # noqa: B023
            if process.poll() is None:
                return
        raise AssertionError(out.read_text()[-3000:])


@contextlib.contextmanager
def ray_nodes(folder: Path, environment: Mapping[str, str]) -> Iterator[RayNodes]:
    """A cluster without nodes yet, which lasts as long as the context."""
    nodes = RayNodes(folder, environment)
    try:
        yield nodes
    finally:
        nodes.end()


def can_hide() -> bool:
    """Tell whether this machine lets us give a process a file system of its own."""
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True) if shutil.which("unshare") else None
    return done is not None and done.returncode == 0


def answers(host: str, port: int) -> bool:
    """Tell whether something takes connections there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def node_id(address: str, token: str, host: str) -> str:
    """Return Ray's id of the living node at the address `host`."""
    request = urllib.request.Request(f"{address}/nodes?view=summary", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        nodes = [node["raylet"] for node in json.loads(reply.read())["data"]["summary"]]
    return next(n["nodeId"] for n in nodes if n["nodeManagerAddress"] == host and n["state"] == "ALIVE")


def job_list(address: str, token: str) -> list[dict[str, object]]:
    """Return a cluster's jobs as its Jobs API tells them, asked for without this project's code."""
    request = urllib.request.Request(f"{address}/api/jobs/", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        listed: list[dict[str, object]] = json.loads(reply.read())
    return listed
