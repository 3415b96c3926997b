"""A plan says which trials train together."""

from __future__ import annotations

import os

import pytest

from sweeper.planning.costs import lanes_here, measure_costs, measured_plan
from sweeper.planning.plan import cohort_lines
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from tests.running import write_space
from trainables.datasets import load_dataset
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
    lines = cohort_lines(load_spec(write_space(tmp_path, SPACE % "cohort, lanes: 6")))
    assert sorted(lines) == [
        f"4 trials of mlp (depth 2, width {width}, bias True), sgd, batch size 64: 6 lanes a process"
        for width in (16, 8)
    ]


@pytest.mark.integration
def test_an_epoch_is_priced_as_a_lanes_share(tmp_path):
    space = write_space(tmp_path, SPACE % "cohort, lanes: 16")
    spec = load_spec(space, ["space.architecture=mlp", "space.optimizer.batch_size=16"])
    (cost,) = measure_costs(spec, prepare_dataset(spec)).values()
    assert cost.lanes == 16 and 0 < cost.epoch_seconds != cost.alone_seconds > 0
    assert "as one of 16 lanes (" in measured_plan(spec).note


def test_how_many_lanes_is_measured_unless_it_is_given(tmp_path):
    spec = load_spec(write_space(tmp_path, SPACE % "cohort"), ["samples=1", "space.architecture=mlp"])
    data = load_dataset("digits")

    def build(seed):
        return Replicate(configurations(spec)[0], seed=seed, dataset=data, max_epochs=9)

    processes = len(os.sched_getaffinity(0))
    assert 0 <= lanes_here(spec, configurations(spec)[0], build, "cpu") <= max(1, -(-2 // processes))
    assert lanes_here(load_spec(write_space(tmp_path, SPACE % "fused")), configurations(spec)[0], build, "cpu") == 0


def test_what_cannot_be_a_lane_is_counted(tmp_path):
    spec = load_spec(write_space(tmp_path, SPACE % "cohort"), ["training.precision=bfloat16"])
    assert cohort_lines(spec) == ("8 trials cannot be lanes and train alone",)


def test_other_packings_have_no_cohorts(tmp_path):
    assert cohort_lines(load_spec(write_space(tmp_path, SPACE % "sequential"))) == ()
