"""A cluster that cannot be joined or started: one sentence, at once, and a sweep that can be resumed."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.running import write_space

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 1}
samples: 1
space:
  loss: {name: cross_entropy}
  architecture: mlp
  optimizer: {name: sgd, lr: 0.1}
"""


@pytest.mark.integration
def test_a_ray_that_cannot_be_started_is_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sweeper", "run", write_space(tmp_path, SPACE), "--name", "far", "--no-mlflow"]
    far = {**os.environ, "RAY_TMPDIR": "/tmp/none/" + 100 * "x"}  # a socket's path has to fit into 107 bytes
    done = subprocess.run(
        [*command, "--executor", "ray"], cwd=tmp_path, env=far, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1, done.stderr
    assert "Ray could not be started on this machine: " in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "results" / "far").exists(), "nothing was started"


def test_a_cluster_that_is_slow_to_start_is_started_again_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is busy: the first try starts a process, and gives up on it."""
    from sweeper.execution.ray import session

    left: list[subprocess.Popen[bytes]] = []

    def init(**options: object) -> None:
        assert options["address"] == "local"
        if not left:
            left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
            raise Exception("The current node timed out during startup. This could happen …")

    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(session.ray, "shutdown", lambda: None)
    monkeypatch.setattr(session.ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(session.ray, "init", init)
    with session.ray_session(None, None) as resources:
        assert resources == {"CPU": 2.0}
    assert len(left) == 1 and not psutil.pid_exists(left[0].pid)


TRIALS = """
import os
from sweeper.core.processes import prepare
prepare(None)
import ray
from ray.tune.execution import class_cache
from sweeper.execution.ray.session import ray_session

class Trial:
    def process(self):
        return ray.get_runtime_context().get_runtime_env_string(), os.getpriority(os.PRIO_PROCESS, 0)

with ray_session(None, 1):
    environment, niceness = ray.get(class_cache._ActorClassCache().get(Trial).remote().process.remote())
    print(environment, niceness - os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.integration
def test_trials_on_a_cluster_started_here_take_ready_processes_and_come_before_what_runs_beside_them() -> None:
    """With a runtime environment a trial waits for a process of its own, and Ray's agents log what is in it.

    Linux gives 15 parts of a core at niceness 19, 36 at 15 (Ray's default for workers) and 335 at 5.
    """
    secret = {"AWS_SESSION_TOKEN": "planted"}
    done = subprocess.run(
        [sys.executable, "-c", TRIALS], env={**os.environ, **secret}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    environment, niceness = done.stdout.split()
    assert environment == "{}"
    assert 0 < int(niceness) <= 5
