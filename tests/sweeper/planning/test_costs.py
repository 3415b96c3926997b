"""A plan says which trials train together."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sweeper.planning.costs import (
    PRODUCT_PASSES,
    TRAINING_PASSES,
    dataset_size,
    estimate,
    forward_operations,
    known_gpus,
    lanes_here,
    measure_costs,
    measured_plan,
    with_estimate,
)
from sweeper.planning.plan import lane_lines, plan
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from tests.running import write_space
from trainables.datasets import load_dataset
from trainables.datasets.base import DATASETS
from trainables.registry import DataSetSize
from trainables.training.loop import Replicate

SPACE = """
dataset: {name: digits}
scheduler: {name: asha, max_epochs: 9}
samples: 4
replicates: {count: 2, packing: %s}
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {name: mlp, width: {grid: [8, 16]}}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, batch_size: 64}
"""


def test_trials_of_a_shape_train_together_whatever_their_loss(tmp_path):
    lines = lane_lines(load_spec(write_space(tmp_path, SPACE % "lanes, lanes: 6")))
    assert sorted(lines) == [
        f"4 trials of mlp (depth 2, width {width}, bias True), sgd, batch size 64: 6 lanes a process"
        for width in (16, 8)
    ]


@pytest.mark.integration
def test_an_epoch_is_priced_as_a_lanes_share(tmp_path):
    space = write_space(tmp_path, SPACE % "lanes, lanes: 16")
    spec = load_spec(space, ["space.architecture=mlp", "space.optimizer.batch_size=16"])
    (cost,) = measure_costs(spec, prepare_dataset(spec)).values()
    assert cost.lanes == 16 and 0 < cost.epoch_seconds != cost.alone_seconds > 0
    assert "as one of 16 lanes (" in measured_plan(spec).note


def test_how_many_lanes_is_measured_unless_it_is_given(tmp_path):
    spec = load_spec(write_space(tmp_path, SPACE % "lanes"), ["samples=1", "space.architecture=mlp"])
    data = load_dataset("digits")

    def build(seed):
        return Replicate(configurations(spec)[0], seed=seed, dataset=data, max_epochs=9)

    processes = len(os.sched_getaffinity(0))
    assert 0 <= lanes_here(spec, configurations(spec)[0], build, "cpu") <= max(1, -(-2 // processes))
    alone = load_spec(write_space(tmp_path, SPACE % "sequential"))
    assert lanes_here(alone, configurations(spec)[0], build, "cpu") == 0


def test_what_shares_no_lanes_is_counted(tmp_path):
    spec = load_spec(write_space(tmp_path, SPACE % "lanes"), ["training.precision=bfloat16"])
    assert lane_lines(spec) == ("8 trials share no lanes with other trials",)


CIFAR = """
dataset: {name: cifar10}
scheduler: {name: none, max_epochs: 350}
replicates: 5
space: {loss: {name: LOSS}, architecture: resnet18, optimizer: sgd}
evaluation: {curvature: false}
"""


def size_of(name: str) -> DataSetSize:
    """Return the size of a data set with default options."""
    return dataset_size({"name": name, **{h.name: h.default for h in DATASETS[name].hyperparameters}})


def spec_of(folder: Path, loss: str = "focal", *overrides: str) -> SweepSpec:
    path = folder / f"{loss}.yaml"
    path.write_text(CIFAR.replace("LOSS", loss))
    return load_spec(path, overrides)


def test_operations_are_the_published_ones() -> None:
    """ResNet-18 with the CIFAR stem: 0.56 G multiply-adds; WRN-28-10: 5.2 G (Zagoruyko & Komodakis 2016, Table 5)."""
    size = size_of("cifar10")
    assert forward_operations({"name": "resnet18"}, size) == pytest.approx(2 * 0.556e9, rel=0.01)
    assert forward_operations({"name": "wrn_28_10"}, size) == pytest.approx(2 * 5.2e9, rel=0.02)


def test_trees_and_words_are_counted() -> None:
    trees = forward_operations({"name": "tree_lstm"}, size_of("sst2"))
    assert trees > forward_operations({"name": "tree_lstm", "width": 75}, size_of("sst2")) > 1e6
    assert forward_operations({"name": "global_pooling_cnn"}, size_of("newsgroups20")) > 1e8


def test_hours_are_operations_over_speed(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    found = estimate(spec, 350 * 5, 5)
    forward = forward_operations({"name": "resnet18"}, size_of("cifar10"))
    operations = 350 * 5 * 45_000 * TRAINING_PASSES * forward + 5 * 15_000 * forward
    assert found.operations == pytest.approx(operations)
    known, slowest = known_gpus()
    for card in known:
        low, high = found.gpu_hours[card.name]
        assert low == pytest.approx(operations / card.operations_per_second / 3600) and high == slowest * low
    assert "estimate" in found.assumption and "2,470 images/s" in found.assumption


def test_curvature_and_trace_regularisation_cost_their_products(tmp_path: Path) -> None:
    plain = estimate(spec_of(tmp_path), 100, 10)
    curvature = ["evaluation.curvature={samples: 1000, lanczos_steps: 10, trace_probes: 5, losses: [cross_entropy]}"]
    measured = estimate(spec_of(tmp_path, "focal", *curvature), 100, 10)
    regularised = estimate(spec_of(tmp_path, "hessian_trace"), 100, 10)
    forward = forward_operations({"name": "resnet18"}, size_of("cifar10"))
    assert measured.operations - plain.operations == pytest.approx(10 * 1000 * 15 * PRODUCT_PASSES * forward)
    assert regularised.operations > 4 * plain.operations


def test_a_sharpness_aware_step_costs_two(tmp_path: Path) -> None:
    plain = estimate(spec_of(tmp_path), 100, 0)
    sharp = estimate(spec_of(tmp_path, "focal", "space.optimizer={name: sgd, sharpness: sam}"), 100, 0)
    zero = estimate(spec_of(tmp_path, "focal", "space.optimizer={name: sgd, sharpness: sam, rho: 0}"), 100, 0)
    assert sharp.operations == 2 * plain.operations and zero.operations == plain.operations


def test_measuring_after_every_epoch_costs_a_forward_pass_of_the_splits() -> None:
    spec = load_spec("mukhoti_figures_2_3_4")
    with_it = estimate(spec, 1, 0)
    evaluation = spec.evaluation.model_copy(update={"trajectory": None})
    without = estimate(spec.model_copy(update={"evaluation": evaluation}), 1, 0)
    assert with_it.operations / without.operations == pytest.approx((45_000 * 3 + 45_000 + 10_000) / (45_000 * 3))


def test_sizes_are_those_of_the_data_sets_at_hand() -> None:
    for name in ("digits", "digits_32", "digits_stand_in", "known_posterior_1d", "mukhoti_linear"):
        options = {h.name: h.default for h in DATASETS[name].hyperparameters if h.default is not None}
        data, size = load_dataset(name, **options), dataset_size({"name": name, **options})
        assert (size.input_shape, size.classes) == (data.input_shape, data.classes)
        assert (size.train, size.val, size.test) == (len(data.train), len(data.val), len(data.test))


def test_options_change_a_size_and_unknown_data_have_none() -> None:
    tenth = dataset_size({"name": "cifar10", "class_fraction": 0.1, "image_size": 224})
    assert tenth.train == 4500 and tenth.input_shape == (3, 224, 224)
    assert dataset_size({"name": "image_folder", "folder": "x"}) is None


def test_a_plan_shows_hours_where_a_card_is_worth_it(tmp_path: Path) -> None:
    large = with_estimate(spec_of(tmp_path), plan(spec_of(tmp_path)))
    spec = spec_of(tmp_path, "focal", "dataset={name: digits}", "space.architecture=mlp")
    small = with_estimate(spec, plan(spec))
    shown = []
    priced = dataclasses.replace(large, price_per_gpu_hour=2.0)
    for planned in (large, dataclasses.replace(small, rehearsed=("everything smaller",)), priced):
        console = Console(width=100)
        with console.capture() as captured:
            console.print(planned)
        shown.append(captured.get())
    assert "GPU-hours, A100" in shown[0] and "REHEARSAL" not in shown[0]
    assert "GPU-hours" not in shown[1] and "REHEARSAL" in shown[1]
    low, high = large.estimate.gpu_hours["A100"]
    assert " at 2 per hour" not in shown[0] and f", {2 * low:,.2f} to {2 * high:,.2f} at 2 per hour" in shown[2]


def test_a_small_networks_buffers_have_their_values_and_no_random_number_is_taken(monkeypatch):
    class Looked(torch.nn.Linear):
        def __init__(self):
            super().__init__(64, 10)
            self.register_buffer("place", torch.full((1,), 63))

        def forward(self, inputs):
            assert int(self.place) == 63
            return super().forward(inputs.flatten(1))

    monkeypatch.setattr("sweeper.planning.costs.build_model", lambda **_: Looked())
    before = torch.get_rng_state()
    assert forward_operations({"name": "mlp"}, size_of("digits")) == 2 * 64 * 10
    assert torch.equal(torch.get_rng_state(), before)
