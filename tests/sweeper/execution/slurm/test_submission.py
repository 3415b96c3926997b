"""Submissions to Slurm, as far as they need none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.api.clusters import submit
from sweeper.api.commands import plan
from sweeper.core.errors import SweeperError
from sweeper.execution.slurm.submission import SlurmSubmission

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll}
scheduler: {name: none, max_epochs: 1}
space:
  loss: {grid: [cross_entropy, focal]}
  architecture: mlp
  optimizer: {name: sgd, lr: 0.1}
"""


@pytest.mark.parametrize(("text", "line"), [("workers: 40\ngpus: 1", "--array=0-1\n"), ("nodes: 4", "--nodes=2\n")])
def test_no_more_is_asked_for_than_there_are_trials(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "a.yaml").write_text(SPACE)
    (tmp_path / "slurm.yaml").write_text(text)
    done = submit(tmp_path / "a.yaml", slurm=True, print_only=True, output=str(tmp_path / "results"))
    assert isinstance(done, SlurmSubmission)
    assert any(line in script for script in done.scripts.values()), done.scripts


def test_a_plan_takes_any_slurm_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPACE)
    (tmp_path / "other.yaml").write_text("workers: 40")
    there = plan(tmp_path / "a.yaml", slurm=True, slurm_file=tmp_path / "other.yaml").json
    assert isinstance(there, dict) and "cluster" in there
    for wrong in ({"slurm_file": "other.yaml"}, {"slurm": True, "cluster": "other.yaml"}):
        with pytest.raises(SweeperError, match="--slurm"):
            plan(tmp_path / "a.yaml", **wrong)
