"""Rehearsals: what is scaled, what a file may change, and that no rehearsal passes for the real thing."""

import functools
import textwrap
from pathlib import Path
from typing import Any

import pytest

from search_spaces import packaged_files
from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.labels import rehearsal_name
from sweeper.core.schemas import record_batch, table_schemas
from sweeper.space.configurations import configurations
from sweeper.space.loading import build_spec, load_spec, rehearsal_of
from sweeper.space.rehearsal import CONFIGURATIONS, EPOCHS, GRID_POINTS, REPLICATES, merged
from sweeper.space.spec import SweepSpec
from sweeper.storage.metadata import build_manifest
from tests.sweeper.small_registries import MINIMAL
from trainables.datasets import digits, load_dataset
from trainables.datasets.base import DATASETS
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES, fit_fault
from trainables.registry import column_label
from trainables.training.recipe import learning_rate_factor

PAPER_SCALE = """
dataset: {name: cifar100}
scheduler: {name: asha, max_epochs: 350, grace_epochs: 40, reduction_factor: 3}
samples: 100
replicates: {count: 5, packing: lanes}
space:
  loss: {grid: [cross_entropy, {name: focal, gamma: {grid: [1, 2, 3, 5]}}, focal_scheduled]}
  architecture: {grid: [resnet50, resnet110, {name: resnet18, width: {grid: [1, 2]}}, densenet121, tree_lstm]}
  optimizer:
    name: sgd
    lr: 0.1
    schedule: step
    milestones: [150, 250]
    weight_decay: {loguniform: [1.0e-4, 1.0e-3]}
    warmup_epochs: 35
    batch_size: {choice: [128, 256]}
    checkpoint: best_val_nll
    checkpoint_after: 40
evaluation:
  posthoc: [temperature]
  curvature: {lanczos_steps: 32}
  trajectory: {every: 10, gradient_norms: [10, 100, 200]}
training: {compile: true, class_weights: {apple: 2}}
budget: {gpu_hours: 100}
resources: {cpu: 8, gpu: 1}
"""


def spec_of(tmp_path: Path, more: str = "", **options: Any) -> SweepSpec:
    path = tmp_path / "space.yaml"
    path.write_text(PAPER_SCALE + textwrap.dedent(more))
    return load_spec(path, **options)


def test_everything_that_costs_time_is_scaled(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, rehearse=True)
    assert spec.is_rehearsal and spec.rehearsal is None
    assert spec.dataset["name"] == digits.STAND_IN and spec.dataset["size"] == 32
    assert spec.scheduler.max_epochs == EPOCHS and spec.schedule.rungs == (1, 3, 4)
    assert spec.replicates.count == REPLICATES and spec.resources.cpu == 1
    assert len(configurations(spec)) <= GRID_POINTS
    assert spec.evaluation.curvature and spec.evaluation.curvature["samples"] == 16
    assert spec.evaluation.trajectory and spec.evaluation.trajectory.gradient_norms == [1, 2]
    assert spec.budget is None and not spec.training.compile and spec.training.class_weights == "balanced"
    networks = {c["architecture"]["name"] for c in configurations(spec)}
    assert networks == {"resnet8", "densenet", "tree_lstm"}
    said = "; ".join(spec.rehearsed)
    for words in ("350 epochs → 4", "cifar100 → handwritten digits", "resnet50 → resnet8", "5 replicates → 2"):
        assert words in said


def test_the_recipe_keeps_its_shape(tmp_path: Path) -> None:
    """At every share of the run, the learning rate has the factor that it has in the paper's run."""
    real, small = spec_of(tmp_path), spec_of(tmp_path, rehearse=True)
    recipes = [configurations(spec)[0]["optimizer"] for spec in (real, small)]
    for share in (0.0, 0.05, 0.2, 0.43, 0.5, 0.72, 0.9):
        factors = [
            learning_rate_factor(recipe, share * epochs, epochs)
            for recipe, epochs in zip(recipes, (350, 4), strict=True)
        ]
        assert factors[0] == pytest.approx(factors[1])


def test_a_recipe_that_states_its_length_is_left_alone(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, overrides=["space.optimizer.recipe_epochs=400"], rehearse=True)
    assert configurations(spec)[0]["optimizer"]["milestones"] == [150.0, 250.0]


def test_the_files_own_changes_come_last(tmp_path: Path) -> None:
    changes = """
    rehearsal:
      samples: 2
      scheduler: {max_epochs: 6}
      replicates: 3
      space: {loss: {name: focal, gamma: 3}, architecture: mlp, optimizer: {lr: 0.02}}
      evaluation: {curvature: false}
    """
    spec = spec_of(tmp_path, changes, rehearse=True)
    assert (spec.samples, spec.scheduler.max_epochs, spec.replicates.count) == (2, 6, 3)
    assert spec.evaluation.curvature is False and spec.evaluation.posthoc
    drawn = configurations(spec)[0]
    assert drawn["loss"]["gamma"] == 3 and drawn["architecture"]["name"] == "mlp" and drawn["optimizer"]["lr"] == 0.02
    assert spec_of(tmp_path, changes).scheduler.max_epochs == 350


FAULTS = [
    ("rehearsal: {smaples: 3}", "rehearsal.smaples", "did you mean 'samples'?"),
    ("rehearsal: {space: {loss: {name: focal, gamma: -1}}}", "rehearsal.space.loss.gamma", "outside [0, inf)"),
    ("rehearsal: {scheduler: {grace_epochs: 9}}", "rehearsal.scheduler.grace_epochs", "above max_epochs"),
    ("rehearsal: {header: {question: x}}", "rehearsal.header", "cannot be changed"),
    ("rehearsal: {rehearsed: []}", "rehearsal.rehearsed", "cannot be changed"),
    ("rehearsal: 3", "rehearsal", "must be a valid dictionary"),
    ("rehearsal: {dataset: {name: digitz}}", "rehearsal.dataset", "did you mean"),
]


@pytest.mark.parametrize(("text", "path", "words"), FAULTS)
def test_faults_are_found_without_rehearsing(tmp_path: Path, text: str, path: str, words: str) -> None:
    with pytest.raises(InvalidSearchSpace) as caught:
        spec_of(tmp_path, text)
    assert [fault.path for fault in caught.value.faults] == [path]
    assert words in str(caught.value)


def test_all_faults_of_a_rehearsal_come_at_once_with_their_lines(tmp_path: Path) -> None:
    with pytest.raises(InvalidSearchSpace) as caught:
        spec_of(tmp_path, "rehearsal:\n  smaples: 3\n  evaluation: {bins: 0}\n")
    assert [fault.path for fault in caught.value.faults] == ["rehearsal.smaples", "rehearsal.evaluation.bins"]
    assert all(fault.line is not None for fault in caught.value.faults)


def test_every_setting_of_a_scheduler_that_counts_epochs_is_scaled() -> None:
    scheduler = {"name": "median_stopping", "max_epochs": 40, "grace_epochs": 20, "interval_epochs": 10}
    spec = rehearsal_of(build_spec({**MINIMAL, "scheduler": scheduler}))
    assert spec.schedule.rungs == (2, 3, EPOCHS)


def test_merging_replaces_what_has_another_name_and_joins_the_rest() -> None:
    base = {
        "loss": {"grid": [1, 2]},
        "net": {"name": "mlp", "width": 4},
        "list": [1],
        "scheduler": {"name": "asha", "max_epochs": 9, "n": 1},
    }
    changes = {"loss": {"name": "focal"}, "net": {"width": 8}, "list": [2], "scheduler": {"name": "none"}}
    assert merged(base, changes) == {
        "loss": {"name": "focal"},
        "net": {"name": "mlp", "width": 8},
        "list": [2],
        "scheduler": {"name": "none", "max_epochs": 9},
    }
    assert merged(base["net"], {"name": "resnet8"}) == {"name": "resnet8"}


def test_a_rehearsals_resolved_file_is_itself_again(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "rehearsal: {samples: 2}", rehearse=True)
    assert build_spec(spec.resolved()) == spec
    assert rehearsal_of(spec) is spec
    real = spec_of(tmp_path, "rehearsal: {samples: 2}")
    assert build_spec(real.resolved()) == real


@pytest.mark.parametrize("name", sorted(packaged_files()))
def test_every_shipped_file_can_be_rehearsed(name: str) -> None:
    spec = load_spec(packaged_files()[name], rehearse=True)
    assert spec.is_rehearsal and len(configurations(spec)) <= max(CONFIGURATIONS, 60)
    assert spec.scheduler.max_epochs <= 30
    size = column_label(spec.dataset["name"])
    assert size in ("digits", "known_posterior_1d", "mukhoti_linear", "number_words", digits.STAND_IN)


def rehearsed_of(dataset: Any, loss: Any, network: Any) -> SweepSpec:
    space = {"loss": loss, "architecture": network, "optimizer": "sgd"}
    scheduler = {"name": "none", "max_epochs": 50}
    return load_spec({"dataset": dataset, "scheduler": scheduler, "space": space}, rehearse=True)


def test_every_data_set_and_loss_has_a_rehearsal() -> None:
    losses = {"grid": [{"name": name} for name in LOSSES]}
    for name in DATASETS:
        required = {h.name: "somewhere" for h in DATASETS[name].hyperparameters if h.required}
        rehearsed, declared = rehearsed_of({"name": name, **required}, losses, "mlp"), DATASETS[name].stand_in
        assert rehearsed.is_rehearsal
        assert declared or rehearsed.dataset["name"] == (digits.STAND_IN if declared is None else name)


def test_every_network_has_a_small_one_that_suits_the_stand_in() -> None:
    loaded = functools.cache(lambda stated: load_dataset(**dict(stated)))
    text = {"tree_lstm": "sst2"} | dict.fromkeys(["text_average", "global_pooling_cnn", "transformers"], "newsgroups20")
    library = {"timm": {"model": "resnet18"}, "torchvision": {"model": "resnet18"}, "transformers": {"folder": "none"}}
    for name in ARCHITECTURES:
        spec = rehearsed_of(text.get(name, "cifar10"), "focal", {"name": name, **library.get(name, {})})
        network = configurations(spec)[0]["architecture"]
        assert fit_fault(loaded(tuple(spec.dataset.items())), network) is None


@pytest.mark.parametrize("rehearsal", [False, True])
def test_every_row_that_the_driver_writes_says_what_it_is(rehearsal: bool) -> None:
    schemas = table_schemas({}, 10, (), rehearsal=rehearsal)
    for table in ("trials", "epochs", "evaluations", "decisions"):
        batch = record_batch(table, schemas[table], [{"trial": "c00000"}, {"trial": "c00001"}])
        assert batch.column("rehearsal").to_pylist() == [rehearsal, rehearsal]


def test_manifest_and_name_say_so(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, rehearse=True)
    assert build_manifest(spec, {})["rehearsal"] == spec.rehearsed
    assert "rehearsal" not in build_manifest(spec_of(tmp_path), {})
    assert rehearsal_name("mine") == "mine-rehearsal" == rehearsal_name("mine-rehearsal")
    assert len(rehearsal_name("x" * 100)) == 100
