"""Warnings of both clouds, and a pod's end, become drains of the machine's own Ray node, once."""

import contextlib
import datetime
import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.kubernetes import faults
from tests.deploy.metadata_service import Metadata, metadata_service
from tests.patience import patient
from tests.remote.services import node_id, ray_nodes, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPT = DEPLOY / "images/drain_on_warning.py"

FAKE_RAY = """#!{python}
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
left = int((here / "refusals").read_text())
(here / "refusals").write_text(str(max(0, left - 1)))
sys.exit("the head is busy" if left else 0)
"""

ASK_HEAD = """
import json, sys
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus
reply = GetClusterStatusReply()
reply.ParseFromString(GcsClient(sys.argv[1]).get_cluster_status(timeout_s=30))
nodes = reply.cluster_resource_state.node_states
print(json.dumps({node.node_ip_address: NodeStatus.Name(node.status) for node in nodes}))
"""


class Machine:
    """A machine with a process that looks like a raylet, and a `ray` that writes down how it is called."""

    def __init__(self, folder: Path, refusals: int = 0) -> None:
        self.folder = folder
        self.host = f"127.{random.randrange(1, 255)}.{random.randrange(255)}.{random.randrange(1, 255)}"
        self.node, self.head = secrets.token_hex(28), f"10.0.0.{random.randrange(1, 255)}:6379"
        self.environment = {**os.environ, "TMPDIR": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
        self.log = folder / "log"
        (folder / "ray").write_text(FAKE_RAY.format(python=sys.executable))
        (folder / "ray").chmod(0o755)
        (folder / "refusals").write_text(str(refusals))
        (folder / "calls").touch()

    @contextlib.contextmanager
    def raylet(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it."""
        named = [f"--node_id={self.node}", f"--node_ip_address={self.host}", f"--gcs-address={self.head}"]
        command = ["/ray/core/raylet", "-c", "import time; time.sleep(120)", *named]
        process = subprocess.Popen(command, executable=sys.executable)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the script."""
        command = [sys.executable, str(SCRIPT), *arguments, f"--host={self.host}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self.environment, stderr=log)

    def calls(self) -> list[list[str]]:
        """Return how `ray` was called."""
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _drained(machine: Machine, call: list[str]) -> int:
    """Assert that the call drains the machine's node; return the seconds that it leaves."""
    options = dict(word.removeprefix("--").split("=", 1) for word in call[1:])
    seconds = int(options.pop("deadline-remaining-seconds"))
    reason = options.pop("reason-message")
    assert call[0] == "drain-node" and reason in machine.log.read_text()
    expected = {"address": machine.head, "node-id": machine.node, "reason": "DRAIN_NODE_REASON_PREEMPTION"}
    assert options == expected
    return seconds


def _warn(metadata: Metadata, kind: str) -> int:
    """Let the cloud warn; return the notice in seconds."""
    if kind == "spot":
        metadata.spot_ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=90)
        return 90
    if kind == "preempted":
        metadata.preempted = "TRUE"
        return 30
    metadata.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
    return 60


@pytest.mark.integration
@pytest.mark.parametrize(
    ("cloud", "kind", "refusals"), [("aws", "spot", 1), ("gcp", "preempted", 0), ("gcp", "maintenance", 0)]
)
def test_a_clouds_warning_drains_the_node_once(tmp_path: Path, cloud: str, kind: str, refusals: int) -> None:
    machine = Machine(tmp_path, refusals)
    with metadata_service() as metadata, machine.raylet() as raylet:
        metadata.out_of_order = True
        metadata.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"
        with _ended(machine.start(cloud, f"--metadata={metadata.address}")) as watcher:
            wait_until(lambda: "503" in machine.log.read_text(), 60, "a word about the silent service")
            metadata.out_of_order = False
            wait_until(lambda: "answers again" in machine.log.read_text(), 60, "an answer")
            asked = len(metadata.asked)
            wait_until(lambda: len(metadata.asked) >= asked + 4, 60, "more looks")
            assert machine.calls() == [], "without a warning nothing is drained"
            with _ended(machine.start(cloud, f"--metadata={metadata.address}")) as second:
                assert second.wait(patient(60)) == 1
            assert "another watcher runs" in machine.log.read_text()
            notice = _warn(metadata, kind)
            assert watcher.wait(patient(90)) == 0, machine.log.read_text()
        assert raylet.poll() is None
    calls = machine.calls()
    assert len(calls) == 1 + refusals
    assert 1 <= _drained(machine, calls[-1]) <= notice
    log = machine.log.read_text()
    assert log.count("the head is busy") == refusals
    assert f"node {machine.node} is draining" in log and "1 Ray nodes run here, 1 of them drained" in log


@pytest.mark.integration
def test_a_pods_end_waits_until_its_node_has_ended(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    with machine.raylet() as raylet:
        with _ended(machine.start("now", "--seconds=50")) as hook:
            wait_until(machine.calls, 60, "the drain")
            with pytest.raises(subprocess.TimeoutExpired):
                hook.wait(3)
            raylet.kill()
            raylet.wait()
            assert hook.wait(patient(30)) == 0
        assert len(machine.calls()) == 1
        assert 1 <= _drained(machine, machine.calls()[0]) <= 50
    with _ended(machine.start("now")) as again:
        assert again.wait(patient(30)) == 0, "no node, nothing to wait for"
    assert len(machine.calls()) == 1


@pytest.mark.integration
def test_a_head_that_never_accepts_is_reported_and_does_not_delay_the_end(tmp_path: Path) -> None:
    machine = Machine(tmp_path, refusals=1000)
    with machine.raylet(), _ended(machine.start("now", "--seconds=3")) as hook:
        assert hook.wait(patient(40)) == 1
    assert "1 Ray nodes run here, 0 of them drained" in machine.log.read_text()


def test_every_way_to_deploy_runs_it_on_its_workers() -> None:
    assert "deploy/images/drain_on_warning.py" in (DEPLOY / "images/Dockerfile").read_text()
    for name, path in (("base/raycluster.yaml", []), ("jobs/rayjob.yaml", ["rayClusterSpec"])):
        spec = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())["spec"]
        for key in path:
            spec = spec[key]
        for group in spec["workerGroupSpecs"]:
            pod = group["template"]["spec"]
            command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            assert command[:3] == ["python", "/opt/sweeper/drain_on_warning.py", "now"]
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": pod}
            assert faults(whole) == []
            assert int(command[3].removeprefix("--seconds=")) < pod["terminationGracePeriodSeconds"]
    for cloud in ("aws", "gcp"):
        document = yaml.safe_load((DEPLOY / f"ray/{cloud}.yaml").read_text())
        assert document["file_mounts"]["/home/ubuntu/sweeper/drain_on_warning.py"] == "./" + str(
            SCRIPT.relative_to(DEPLOY.parent)
        )
        (line,) = [line for line in document["worker_start_ray_commands"] if "drain_on_warning" in line]
        assert (
            f"~/sweeper/drain_on_warning.py {cloud} " in line and line.endswith("&") and "RAY_AUTH_MODE=token" in line
        )
        assert subprocess.run(["bash", "-n", "-c", f"({line})"]).returncode == 0, "as Ray runs it"
        assert not any("drain_on_warning" in line for line in document["head_start_ray_commands"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_clouds_warning_drains_a_real_node(tmp_path: Path) -> None:
    """Head and nodes are Ray's own, with token authentication; a drained node ends once its last work is done."""
    token = secrets.token_hex(32)
    (tmp_path / "token").write_text(token)
    plain = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    access = {**plain, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    warned, other = "127.0.0.41", "127.0.0.42"
    with metadata_service() as metadata, ray_nodes(tmp_path, access) as nodes:
        head = f"127.0.0.2:{nodes.port}"
        nodes.start_head()
        nodes.add(other)
        nodes.add(warned)
        _work(nodes.dashboard, access, warned, until=tmp_path / "done")
        identity = node_id(nodes.dashboard, token, warned)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        command = [sys.executable, str(SCRIPT), "aws", f"--metadata={metadata.address}", f"--host={warned}"]
        log = tmp_path / "log"
        environment = {**access, "PATH": path, "TMPDIR": str(tmp_path)}
        with log.open("wb") as out, _ended(subprocess.Popen(command, env=environment, stderr=out)) as watcher:
            wait_until(lambda: metadata.tokens, 60, "a first look")
            assert "DRAINING" not in _states(access, head).values()
            _warn(metadata, "spot")
            assert watcher.wait(patient(120)) == 0, log.read_text()
        assert f"node {identity} is draining" in log.read_text()
        states = _states(access, head)
        assert states[warned] == "DRAINING" != states[other], states
        (tmp_path / "done").touch()
        wait_until(lambda: _states(access, head).get(warned) in (None, "DEAD"), 120, "the drained node's end")
        assert _states(access, head)[other] in ("RUNNING", "IDLE")


def _work(dashboard: str, environment: dict[str, str], host: str, until: Path) -> None:
    """Keep a node busy until a file appears."""
    wanted = f"--entrypoint-resources={json.dumps({f'node:{host}': 0.001})}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", f"--address={dashboard}", wanted]
    command += ["--no-wait", "--", "sh", "-c", f"touch {until}.begun; while [ ! -e {until} ]; do sleep 0.5; done"]
    # A head that has just started has nobody to take jobs yet.
    wait_until(lambda: subprocess.run(command, env=environment, timeout=200).returncode == 0, 120, "a job")
    wait_until(Path(f"{until}.begun").exists, 120, "work on the node")


def _states(environment: dict[str, str], head: str) -> dict[str, str]:
    """Return what the head says of each node: address → RUNNING, IDLE, DRAINING or DEAD."""
    done = subprocess.run([sys.executable, "-c", ASK_HEAD, head], env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, str] = json.loads(done.stdout)
    return found
