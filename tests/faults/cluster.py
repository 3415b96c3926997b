"""A real Ray cluster of several nodes on this machine, in a process of its own that a test commands by lines.

`python -m tests.faults.cluster NODES` starts a head without cores and NODES nodes of one core each, prints the address,
and then takes `kill N` (SIGKILL a node's raylet; N counts from 0, `head` is the head), `add`, `add FOLDER` (a node with
its temporary files there), and the end of its input, which ends every process it started.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sweeper.core.processes import PATIENT_START

TOKEN = "0123456789abcdef" * 4

QUICK_DEATHS = {
    # A dead node is noticed after 1.5 s instead of half a minute, a dead head after 3 s instead of a minute.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3",
    **PATIENT_START,
}


class LocalCluster:
    """The test's side: the process, its address and the environment that a driver needs to join it."""

    def __init__(self, nodes: int, folder: Path, before: Sequence[str] = ()) -> None:
        """Start a cluster that logs into `folder`; its command stands behind `before`."""
        self.environment = {**os.environ, **QUICK_DEATHS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        with (folder / "cluster.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", "tests.faults.cluster", str(nodes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
                cwd=Path(__file__).parents[2],
            )
        self.address = self._answer()

    def tell(self, command: str) -> str:
        """Give a command and wait until it is done."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End every process of the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("cluster: "):
                return line.removeprefix("cluster: ").strip()
        raise AssertionError("the cluster's process ended")


@contextmanager
def local_cluster(nodes: int, folder: Path, before: Sequence[str] = ()) -> Iterator[LocalCluster]:
    """A cluster that lasts as long as the context."""
    cluster = LocalCluster(nodes, folder, before)
    try:
        yield cluster
    finally:
        cluster.end()


def main() -> None:
    """Serve."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(int(sys.argv[1]))]
    print(f"cluster: {cluster.address}", flush=True)
    for line in sys.stdin:
        match line.split():
            case ["kill", "head"]:
                cluster.head_node.kill_gcs_server(check_alive=False)
                cluster.head_node.kill_raylet(check_alive=False)
            case ["kill", number]:
                cluster.remove_node(nodes.pop(int(number) % len(nodes)), allow_graceful=False)
            case ["add"]:
                nodes.append(cluster.add_node(num_cpus=1))
            case ["add", folder]:
                nodes.append(cluster.add_node(num_cpus=1, env_vars={"TMPDIR": folder}))
        print(f"cluster: {len(nodes)} nodes", flush=True)
    for node in [*nodes, cluster.head_node]:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main()
