"""Options of the data set as part of the space: columns, strata, data, faults."""

from pathlib import Path

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.ids import configuration_index
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep, run_sweep
from sweeper.planning.preparation import data_keys, prepare_dataset
from sweeper.results import load
from sweeper.results.leaderboard import varying_columns
from sweeper.space.components import resolve_component
from sweeper.space.configurations import configurations
from sweeper.space.loading import build_spec, load_spec
from tests.running import write_space
from tests.sweeper.small_registries import REGISTRIES
from trainables.datasets import load_dataset
from trainables.datasets.sharing import content_key
from trainables.training import Replicate

SPACE = """
dataset: {name: digits, label_noise: {grid: [0, 0.2]}}
objective: {metric: val_nll}
scheduler: {name: none, max_epochs: 2}
samples: 1
space:
  loss: {grid: [{name: cross_entropy}, {name: focal, gamma: 2}]}
  architecture: {name: mlp, width: 16}
  optimizer: {name: sgd, lr: 0.1, batch_size: 128}
evaluation: {bins: 15, curvature: false, bootstrap: 0}
"""


def test_the_axis_is_a_hyperparameter_and_the_first_value_the_sweeps_own(tmp_path: Path) -> None:
    spec = load_spec(write_space(tmp_path, SPACE))
    assert spec.dataset == {"name": "digits", "label_noise": 0.0}
    drawn = configurations(spec)
    found = {(c["loss"]["name"], c["dataset"]["label_noise"]) for c in drawn}
    assert found == {(loss, noise) for loss in ("cross_entropy", "focal") for noise in (0.0, 0.2)}
    assert spec.space.column_types["config_dataset_label_noise"] is float
    again = build_spec(spec.resolved())
    assert again == spec and again.resolved() == spec.resolved()


def test_every_data_set_is_loaded_once_a_node_and_known_by_its_contents(tmp_path: Path) -> None:
    spec = load_spec(write_space(tmp_path, SPACE))
    named = spec.space.data_sets
    assert sorted(each["label_noise"] for each in named) == [0.0, 0.2]
    keys = data_keys(spec)
    assert keys is not None and len(set(keys.values())) == 2
    for each in named:
        options = {key: value for key, value in each.items() if key != "name"}
        assert keys[each] == content_key(load_dataset("digits", **options))
    assert content_key(prepare_dataset(spec)) == keys[named[0]]


@pytest.mark.integration
def test_trials_train_on_their_data_and_equal_those_of_a_sweep_on_it_alone(tmp_path: Path) -> None:
    options = RunOptions(tmp_path / "results", cpus=2)
    both = run_sweep(write_space(tmp_path, SPACE), [], "both", options)
    assert both.outcome == "finished" and not both.state.count()["failed"]
    results = load(both.sweep.paths.root)
    assert varying_columns(results) == ("config_loss_name", "config_dataset_label_noise")
    joined = "epochs JOIN trials USING (trial, replicate)"
    rows = results.rows(f"SELECT trial, seed, train_loss FROM {joined} WHERE epoch = 2")
    assert len(rows) == 4
    for row in rows:
        values = both.sweep.configurations[configuration_index(row["trial"])]
        data = load_dataset("digits", label_noise=values["dataset"]["label_noise"])
        alone = Replicate(values, seed=row["seed"], dataset=data, max_epochs=2)
        alone.train_epoch()
        assert alone.train_epoch()["train_loss"] == row["train_loss"]
    assert resume_sweep("both", options).outcome == "finished"


def test_strata_take_the_axis(tmp_path: Path) -> None:
    settings = ["scheduler={name: asha, max_epochs: 9, grace_epochs: 3, within: [dataset.label_noise]}", "samples=6"]
    spec = load_spec(write_space(tmp_path, SPACE), settings)
    stratum = spec.schedule
    assert getattr(stratum, "within", None) == ("dataset.label_noise",) or "label_noise" in str(stratum)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("dataset.label_noise={uniform: [0, 0.2]}", "label_noise takes choice or grid"),
        ("dataset.label_noise={choice: [0, 2]}", "label_noise = 2"),
        ("dataset.noise={choice: [0, 0.1]}", "noise"),
        ("dataset={name: {choice: [digits, cifar10]}}", "the name of the data set is the same for the whole sweep"),
    ],
)
def test_what_cannot_be_an_axis_is_refused_with_a_sentence(tmp_path: Path, setting: str, rule: str) -> None:
    with pytest.raises(InvalidSearchSpace, match="dataset") as raised:
        load_spec(write_space(tmp_path, SPACE), [setting])
    assert rule in str(raised.value)


@pytest.mark.parametrize(
    ("loss", "paths"),
    [
        ({"name": "focal", "gamma": {"choice": [{"uniform": [2, 1]}, 1]}}, ["loss.gamma.choice[0].uniform"]),
        ({"name": "focal", "gamma": {"choice": [{"unifrom": [0, 1]}, 1]}}, ["loss.gamma.choice[0]"]),
        ({"name": "focal", "gamma": {"uniform": [-2, -1]}}, ["loss.gamma.uniform", "loss.gamma.uniform"]),
        ({"grid": ["focal", {"name": "focal", "gamma": 3.0}]}, ["loss.grid[1]"]),
        ({"uniform": [0, 1]}, ["loss"]),
    ],
)
def test_a_broken_value_is_one_fault_at_its_own_path(loss: object, paths: list[str]) -> None:
    resolve_component(loss, REGISTRIES.losses, "loss", faults := [])
    assert [fault.path for fault in faults] == paths
