"""Ray's own autoscaler on this machine, with nodes that are raylets, and a timeline of what it does.

`python -m tests.faults.autoscaling VERSION FOLDER MAX_WORKERS` starts a head without cores whose autoscaler may add
workers of one core each, prints the address, and writes a line of `timeline.jsonl` every half second until its input
ends; then it ends every process that it started, found by the name of its temporary folder.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.cluster import QUICK_DEATHS, TOKEN
from tests.faults.processes import kill_ids
from tests.patience import patient

IDLE_MINUTES = 0.05
SAMPLE_SECONDS = 0.5


class Autoscaled:
    """The test's side: the address, the environment a driver needs to join, where metrics are, the timeline so far."""

    def __init__(self, version: int, folder: Path, max_workers: int) -> None:
        self.environment = {**os.environ, **QUICK_DEATHS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        self._timeline = folder / "timeline.jsonl"
        with (folder / "cluster.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.autoscaling", str(version), str(folder), str(max_workers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
                cwd=Path(__file__).parents[2],
            )
        assert self._process.stdout is not None
        self.address, _, self.metrics = self._process.stdout.readline().strip().partition(" ")
        assert self.address, (folder / "cluster.log").read_text()[-2000:]

    def timeline(self) -> list[dict[str, float]]:
        """Return `{"seconds", "workers", "pending"}` of every moment so far."""
        lines = self._timeline.read_text().splitlines() if self._timeline.exists() else []
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """End every process of the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def autoscaled(version: int, folder: Path, max_workers: int) -> Iterator[Autoscaled]:
    """A cluster that lasts as long as the context."""
    cluster = Autoscaled(version, folder, max_workers)
    try:
        yield cluster
    finally:
        cluster.end()


def configuration(version: int, address: str, max_workers: int) -> dict[str, Any]:
    """Return the autoscaler's configuration: no worker to begin with, up to `max_workers` of one core."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    module = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    second = {"launch_multiple": True, "head_node_id": FAKE_HEAD_NODE_ID} if version == 2 else {}
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "fake",
        "max_workers": max_workers,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": {"type": "external", "module": module, "gcs_address": address, "use_node_id_as_ip": True, **second},
        "auth": {},
        "docker": {},
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": max_workers},
        },
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{name}_commands": [] for name in commands},
    }


def environment(version: int) -> dict[str, str]:
    """Return what a head needs in its environment for a version of the autoscaler to run on fake nodes."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    common = {**os.environ, "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    if version == 1:
        return {**common, "RAY_enable_autoscaler_v2": "0"}
    return {
        **common,
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": "ray.head.default",
    }


def main() -> None:
    """Serve."""
    version, folder, max_workers = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    # Ray's sockets lie below this folder, and their paths must stay short.
    with tempfile.TemporaryDirectory(prefix="ray-as-", dir="/tmp", ignore_cleanup_errors=True) as scratch:
        host, port, metrics = socket.gethostbyname(socket.gethostname()), _free_port(), _free_port()
        address = f"{host}:{port}"
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(configuration(version, address, max_workers)))
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
        command += [f"--node-ip-address={host}", "--num-cpus=0", "--include-dashboard=false"]
        command += [f"--ray-client-server-port={_free_port()}", "--object-store-memory=100000000"]
        command += [f"--metrics-export-port={metrics}"]
        command += [f"--temp-dir={scratch}", f"--autoscaling-config={config}"]
        with (folder / "head.log").open("ab") as log:
            head = subprocess.Popen(
                command,
                env=environment(version),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            _sample_until_told(address, f"http://{host}:{metrics}/metrics", folder / "timeline.jsonl", head)
        finally:
            head.send_signal(signal.SIGTERM)
            try:
                head.wait(10)
            except subprocess.TimeoutExpired:
                head.kill()
                head.wait()
            kill_ids(*_processes_of(scratch))


def _sample_until_told(address: str, metrics: str, timeline: Path, head: subprocess.Popen[bytes]) -> None:
    """Say the address and where metrics are once the head answers; write what is there until the input ends."""
    from ray._raylet import GcsClient

    deadline = time.monotonic() + patient(60)
    while True:
        try:
            client = GcsClient(address)
            client.get_cluster_status(timeout_s=5)
            break
        except Exception as error:  # whatever a head that is still starting answers
            assert head.poll() is None and time.monotonic() < deadline, f"no head: {error}"
            time.sleep(0.3)
    print(address, metrics, flush=True)
    began, ended = time.monotonic(), _end_of_input()
    with timeline.open("w") as lines:
        while next(ended) is None:
            sample = {"seconds": round(time.monotonic() - began, 2), **_sample(client)}
            lines.write(json.dumps(sample) + "\n")
            lines.flush()
            time.sleep(SAMPLE_SECONDS)


def _sample(client: Any) -> Mapping[str, int]:
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

    reply = GetClusterStatusReply()
    reply.ParseFromString(client.get_cluster_status(timeout_s=5))
    state = reply.cluster_resource_state
    alive = [node for node in state.node_states if node.status != NodeStatus.DEAD]
    pending = sum(len(gang.requests) for gang in state.pending_gang_resource_requests)
    return {"workers": sum("CPU" in node.total_resources for node in alive), "pending": pending}


def _end_of_input() -> Iterator[bool | None]:
    """Yield `None` while standard input is open."""
    os.set_blocking(sys.stdin.fileno(), False)
    while True:
        try:
            yield None if os.read(sys.stdin.fileno(), 100) else True
        except BlockingIOError:
            yield None


def _processes_of(scratch: str) -> list[int]:
    """Return the processes whose command line names the cluster's temporary folder, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_text()
            except OSError:
                continue  # it ended while we looked
            if scratch in line:
                found.append(int(entry.name))
    return found


def _free_port() -> int:
    """Return a free port outside those that Ray gives its workers (10002–19999)."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex((socket.gethostbyname(socket.gethostname()), port)):
                return port


if __name__ == "__main__":
    main()
