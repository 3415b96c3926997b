"""A trial that a line adds, and seeds that are added later, are exported and read like those of the space."""

import json
from pathlib import Path

import pytest
import torch

import sweeper
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, configuration_index, is_added, trial_name
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep, run_sweep
from sweeper.exporting.folder import Exported
from sweeper.exporting.program import raw_batches
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.results import load
from sweeper.results.leaderboard import leaderboard
from sweeper.scheduling.contenders import unit_of
from tests.running import write_space
from trainables.datasets import load_dataset

#: With so large a γ, cross-entropy, the line's other end, has the lowest NLL.
LINE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 6}
samples: 2
replicates: {count: 1, at_most: 3, seeds: common}
which: [gamma]
space:
  loss: {name: focal, gamma: {uniform: [8, 10]}}
  architecture: {name: mlp, width: 32}
  optimizer: {name: sgd, lr: 0.1, batch_size: 64}
resources: {cpu: 1}
evaluation: {bins: 15, posthoc: [temperature], curvature: false, bootstrap: 0}
"""

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    folder = tmp_path_factory.mktemp("line")
    options = RunOptions(folder / "results", cpus=2, executor="local")
    return run_sweep(write_space(folder, LINE), (), "line", options).sweep.paths


@pytest.fixture(scope="module")
def best(line: SweepPaths) -> str:
    name = str(leaderboard(load(line.root)).best["trial"])
    assert is_added(configuration_index(name)), "the case that these tests are about"
    return name


def raw_test() -> torch.Tensor:
    """Return the test pixels as their source has them."""
    return torch.cat([*raw_batches(load_dataset("digits"), 1000)])


def export(paths: SweepPaths, to: Path, **how: object) -> Exported:
    return sweeper.export(paths.name, to, output=paths.root.parent, **how)


def test_seeds_whose_weights_are_gone_are_trained_again_bit_for_bit(line, best, tmp_path):
    state = fold(read_journal(line.journal), 2)
    rows = leaderboard(load(line.root)).rows
    added = [str(row["trial"]) for row in rows if is_added(configuration_index(row["trial"]))]
    lost = next(name for name in added if name != best)
    kept = {path.name for path in line.checkpoints.iterdir()}
    assert {trial_name(unit_of(state, configuration_index(best), seed).configuration) for seed in (1, 2)} <= kept
    assert trial_name(unit_of(state, configuration_index(lost), 1).configuration) not in kept
    with pytest.raises(SweeperError, match="gone") as refused:
        export(line, tmp_path / "gone", trial=lost)
    assert best in refused.value.remedy and "--retrain" in refused.value.remedy
    again = export(line, tmp_path / "again", trial=lost, replicate="all", retrain=True)
    assert again.again == 0.0 and again.replicates == [1, 2] and again.difference < 1e-5
    drawn = next(name for name in kept if not is_added(configuration_index(name)))
    some = export(line, tmp_path / "some", trial=drawn, replicate="all")
    assert some.replicates == [0] and [*some.left_out] == [1, 2]
    every = export(line, tmp_path / "every", trial=drawn, replicate="all", retrain=True)
    assert every.replicates == [0, 1, 2] and every.again == 0.0 and not every.left_out
    assert {path.name for path in line.checkpoints.iterdir()} == kept, "the sweep stays as it was"


def test_seeds_that_a_user_adds_leave_the_best_one_with_weights(tmp_path):
    options = RunOptions(tmp_path / "results", cpus=2, executor="local")
    space = write_space(tmp_path, LINE.replace("which: [gamma]\n", "").replace(", at_most: 3", ""))
    paths = run_sweep(space, (), "grown", options).sweep.paths
    grown = RunOptions(tmp_path / "results", cpus=2, executor="local", settings=("replicates=3",))
    resume_sweep("grown", grown)
    done = export(paths, tmp_path / "model")
    assert done.trial == leaderboard(load(paths.root)).best["trial"] and done.again is None
    assert json.loads((done.folder / "model.json").read_text())["source"]["replicates"] == done.replicates
    assert torch.isfinite(sweeper.load_model(done.folder).predict(raw_test())).all()
