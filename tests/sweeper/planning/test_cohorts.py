"""A plan says which trials train together."""

from __future__ import annotations

from sweeper.planning.cohorts import cohort_lines
from sweeper.space.loading import load_spec
from tests.running import write_space

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


def test_what_cannot_be_a_lane_is_counted(tmp_path):
    spec = load_spec(write_space(tmp_path, SPACE % "cohort"), ["training.precision=bfloat16"])
    assert cohort_lines(spec) == ("8 trials cannot be lanes and train alone",)


def test_other_packings_have_no_cohorts(tmp_path):
    assert cohort_lines(load_spec(write_space(tmp_path, SPACE % "sequential"))) == ()
