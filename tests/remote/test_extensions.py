"""Components of a user's own on a cluster whose nodes do not see the user's files: they import what is shipped alone.

The files lie in a folder that the cluster's processes, in a mount namespace of their own, find empty; and when
it is resumed they are deleted. One loss is a package that is really installed, with an entry point, below that folder.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import search_spaces
from sweeper.results import Results
from tests.faults.cluster import LocalCluster, local_cluster
from tests.remote.services import can_hide

SPACE = """
dataset: {name: "own_components:spirals", samples: 400}
objective: {metric: val_worst_class_gap, mode: min}
scheduler: {name: none, max_epochs: 2}
samples: 2
replicates: {count: 2, packing: lanes}
space:
  loss: {grid: ["own_components:Poly1", {name: tempered, power: {uniform: [0.5, 1]}}]}
  architecture: {choice: [{name: "own_components:GatedMlp", width: 16}]}
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9, batch_size: 64}
resources: {cpu: 1, gpu: 0}
evaluation:
  bootstrap: 0
  curvature: false
  metrics: ["own_components:worst_class_gap", "where:node", "where:files_seen"]
  posthoc: ["own_components:BiasCorrected"]
"""

WHERE = '''
from pathlib import Path
import ray

def node(probabilities, targets):
    """The node that measures, as a number; 0 outside of a cluster."""
    return int(ray.get_runtime_context().get_node_id()[:12], 16) if ray.is_initialized() else 0

def files_seen(probabilities, targets):
    """Whether the user's folder is to be seen."""
    return Path({folder!r}, "where.py").is_file()
'''

PACKAGE = '''
"""A power of the cross-entropy."""
from torch.nn import functional
from trainables.losses import Loss

class Tempered(Loss):
    """Cross-entropy to a power."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def values(self, logits, targets):
        return functional.cross_entropy(logits, targets, reduction="none") ** self.power
'''

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "tempered-losses"
version = "1.2.0"
[project.entry-points."calibration_sweeper.losses"]
tempered = "tempered_losses:Tempered"
[tool.setuptools]
py-modules = ["tempered_losses"]
"""


def install(source: Path, target: Path) -> None:
    """Install a package with an entry point, as a user would, into a folder."""
    source.mkdir()
    (source / "tempered_losses.py").write_text(PACKAGE)
    (source / "pyproject.toml").write_text(PROJECT)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--target", str(target), str(source)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def sweeper(cluster: LocalCluster, cwd: Path, *arguments: str | Path, path: str = "", status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *map(str, arguments)],
        cwd=cwd, env={**cluster.environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_own_components_of_every_kind_run_on_nodes_that_do_not_see_them(tmp_path: Path) -> None:
    files, output = tmp_path / "files", tmp_path / "results"
    shutil.copytree(Path(search_spaces.__file__).parent / "examples", files)
    install(tmp_path / "source", files / "installed")
    (files / "where.py").write_text(WHERE.format(folder=str(files)))
    (files / "own.yaml").write_text(SPACE)
    checkout = str(Path(search_spaces.__file__).parents[1])
    path = os.pathsep.join([str(files / "installed"), checkout])
    hiding = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(files)]
    with local_cluster(2, tmp_path, hiding if can_hide() else ()) as cluster:
        there = ("--ray", cluster.address, "--output", output, "--no-mlflow")
        stopped = sweeper(cluster, files, "run", "own.yaml", *there, "--set", "budget.wall_hours=1e-7", path=path,
                          status=1)  # fmt: skip
        # What a sweep began before it looked at its budget is trained by this run, the rest by the next one.
        assert re.search("stopped: [1-4] of 4 trials are unfinished", stopped), stopped
        shutil.rmtree(files)
        sweeper(cluster, tmp_path, "resume", "own", *there, "--set", "budget.wall_hours=1", path=checkout)
    results = Results(output / "own")
    rows = results.rows("select * from final where split = 'test'")
    assert len(rows) == 8 and {row["status"] for row in rows} == {"completed"}
    assert {row["config_loss_name"] for row in rows} == {"own_components:Poly1", "tempered"}
    assert {row["packing"] for row in rows} == {"lanes"}
    assert len({row["node"] for row in rows}) == 2, "both nodes measured"
    assert {row["files_seen"] for row in rows} == {0.0}
    for row in rows:
        assert 0 <= row["worst_class_gap"] <= 1 and row["metrics_unavailable"] is None
        assert row["posthoc_bias_corrected_temperature"] > 0 and row["posthoc_bias_corrected_ece"] is not None
    kept = json.loads((output / "own" / "manifest.json").read_text())["extensions"]
    assert kept["components"]["tempered"] == {"kind": "loss", "package": "tempered-losses 1.2.0"}
    assert len(kept["components"]) == 8
