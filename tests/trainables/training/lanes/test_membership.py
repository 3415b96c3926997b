"""What can be a lane, beside whom, and why not."""

from __future__ import annotations

from tests.trainables.training.lanes.comparison import configuration
from trainables.training.lanes.membership import cohort_fault, cohort_key


def test_lanes_of_a_cohort_agree_in_what_decides_their_shapes() -> None:
    mlp = configuration("focal")
    same = [
        configuration({"name": "selective_risk", "coverage": 0.5}, lr=0.3, momentum=0.1, schedule="step"),
        configuration("focal", gradient_clip=1.0, weight_decay=0.0),
    ]
    other = [
        configuration("focal", {"name": "mlp", "width": 7}),
        configuration("focal", batch_size=7),
        configuration("focal", nesterov=True),
        configuration("focal", name="adam", momentum=None),
        configuration("hessian_trace"),
        {**mlp, "dataset": {"name": "digits", "noise": 0.1}},
    ]
    assert {cohort_key(each) for each in (mlp, *same)} == {cohort_key(mlp)}
    assert len({cohort_key(each) for each in (mlp, *other)}) == 1 + len(other)


def test_what_cannot_be_a_lane_says_why() -> None:
    assert cohort_fault(configuration("focal")) is None
    assert "your own loss" in (cohort_fault(configuration("mine:loss")) or "")
    tree = cohort_fault(configuration("focal", "tree_lstm"))
    assert tree is not None and cohort_key(configuration("focal", "tree_lstm")) is None
