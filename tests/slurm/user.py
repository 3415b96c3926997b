"""Somebody on a login node of the tests' Slurm."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from sweeper.execution.slurm.jobs import Exchange
from tests.patience import patient
from tests.running import in_process, write_space
from tests.slurm.slurm_cluster import SlurmCluster

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, variant: promotion, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}
samples: 6
seed: 3
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {choice: [{name: mlp, width: 16}, {name: mlp, width: 8}]}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, batch_size: 128}
resources: {cpu: 1}
evaluation: {posthoc: [temperature], curvature: false, bootstrap: 0}
"""


class User:
    """Somebody on a login node, in a folder that all nodes see."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder

    def says(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `sweeper` with these words, in this process: its imports would take longer than all else."""
        values = {**self.slurm.environment, "PYTHONPATH": str(Path(__file__).parents[2])}
        with mock.patch.dict(os.environ, values):
            return in_process(*words, cwd=self.folder)

    def submits(self, space: str, settings: str, name: str = "a") -> Exchange:
        """Submit a sweep; return what its jobs say to each other."""
        (self.folder / "slurm.yaml").write_text(settings)
        write_space(self.folder, space, name)
        done = self.says("cluster", "submit", f"{name}.yaml", "--slurm", "--name", name, "--no-mlflow")
        assert done.returncode == 0, done.stderr
        return Exchange(self.folder / "results" / ".slurm" / name)

    def logs(self, exchange: Exchange) -> str:
        """Return what all jobs printed."""
        return "\n".join(
            f"== {file.name}\n{file.read_text('utf-8', 'replace')}" for file in exchange.folder.glob("*.[lt]*")
        )

    def waits(self, exchange: Exchange, until: Callable[[], bool], seconds: float = 240) -> None:
        """Wait for something of a sweep's jobs."""
        deadline = time.monotonic() + patient(seconds)
        while not until():
            assert time.monotonic() < deadline, self.slurm.ask("squeue") + self.logs(exchange)
            self.slurm.hurry()
            time.sleep(0.5)
