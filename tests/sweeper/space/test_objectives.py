"""An objective is something that the sweep's trials measure, or the file is refused with the remedy."""

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.journal.best import Objective
from sweeper.space.loading import load_spec
from tests.sweeper.space.test_strata import SPACE, refused

LEAST, MOST = "{metric: val_ece, min: 0.2}", "{metric: val_ece, max: 0.1}"
POSTHOC = "evaluation={posthoc: [temperature, focal_temperature]}"


@pytest.mark.parametrize(
    "metric", ["val_refinement_nll", "val_refinement_brier", "val_calibration_nll", "val_calibration_brier"]
)
def test_refinement_and_calibration_are_measured_anyway(metric):
    assert load_spec(SPACE, [f"objective.metric={metric}"]).cross_fitted == []


def test_a_post_hoc_metric_is_cross_fitted_and_no_other_method_is():
    spec = load_spec(SPACE, ["objective.metric=val_posthoc_focal_temperature_ece", POSTHOC])
    assert spec.cross_fitted == ["focal_temperature"]
    goal = Objective(spec.objective.metric, "min")
    assert (goal.split, goal.column) == ("val", "cross_fitted_focal_temperature_ece")


@pytest.mark.parametrize(("written", "mode"), [({}, "max"), ({"mode": "min"}, "min")])
def test_one_objective_is_optimised_as_its_metric_says_unless_the_file_does(written, mode):
    spec = load_spec({**SPACE, "objective": {"metric": "val_accuracy", **written}})
    assert spec.objective.mode == load_spec(spec.resolved()).objective.mode == mode


def test_a_bound_may_be_what_its_metric_can_be():
    bounded = {**SPACE, "constraints": [{"metric": "val_nll", "max": 25}]}
    assert load_spec(bounded).constraints[0].max == 25


def test_several_objectives_and_constraints_make_a_ranking():
    written = {
        "objectives": ["val_accuracy", {"metric": "val_ada_ece"}, {"metric": "hessian_cross_entropy_lambda_max"}],
        "constraints": [{"metric": "val_accuracy", "within": "0.5 points of the best"}],
    }
    spec = load_spec({**SPACE, **written})
    assert (spec.objective.metric, spec.objective.mode) == ("val_accuracy", "max")
    assert [each.mode for each in spec.objectives] == ["max", "min", "min"]
    assert spec.schedule.metrics == ("val_accuracy", "val_ada_ece", "hessian_cross_entropy_lambda_max")
    assert spec.constraints[0].constraint.text == "val_accuracy within 0.005 of the best"
    assert load_spec(spec.resolved()) == spec


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["objective.metric=val_posthoc_temperature_ece"], "needs the post-hoc method temperature, which"),
        (["objective.metric=val_posthoc_temprature_ece", POSTHOC], "did you mean 'val_posthoc_temperature_ece'"),
        (["objective.metric=val_refinment_nll"], "did you mean 'val_refinement_nll'"),
        (["objective.metric=hessian_training_trace", "evaluation.curvature=false"], "is not measured"),
        (["objective.metric=hessian_training_trace", "evaluation.curvature.losses=[cross_entropy]"], "is not measured"),
        (["objectives=[val_ece, val_ece]"], "val_ece is named twice"),
        (["objectives=[val_ece, val_eces]"], "unknown metric 'val_eces'"),
        (["objectives=[val_ece, val_nll]", "objective={metric: val_nll}"], "is not the first of `objectives`"),
        (["objectives=[val_ece, val_nll]", "scheduler={name: none, max_epochs: 3}"], "none compares one objective"),
        (["objectives=[val_ece, val_nll]", "scheduler.variant=promotion"], "promotion compares one objective"),
        (["replicates={packing: trials}", "scheduler.variant=promotion"], "packing: trials stops and starts"),
        (["scheduler.variant=promotions"], "did you mean 'promotion'"),
        (["constraints=[{metric: val_accuracy}]"], "needs exactly one of within, min and max, not none"),
        (["constraints=[{metric: val_accuracy, within: 1, min: 0.5}]"], "not within and min"),
        (["constraints=[{metric: val_accuracy, min: 90}]"], "val_accuracy lies in [0, 1], so it never reaches 90"),
        (["constraints=[{metric: val_ece, max: 25}]"], "val_ece lies in [0, 1], so it never reaches 25"),
        ([f"constraints=[{LEAST}, {MOST}]"], "val_ece cannot be at least 0.2 and at most 0.1"),
        (["constraints=[{metric: val_posthoc_temperature_ece, max: 0.1}]"], "needs the post-hoc method temperature"),
    ],
)
def test_objectives_and_constraints_that_cannot_be_kept_to_are_refused(overrides, sentence):
    assert sentence in refused(*overrides)


@pytest.mark.parametrize("within", ["a bit", "1.2.3 points"])
def test_a_distance_is_a_number_or_percentage_points(within):
    with pytest.raises(InvalidSearchSpace, match="is neither a number nor percentage points"):
        load_spec({**SPACE, "constraints": [{"metric": "val_accuracy", "within": within}]})


def test_of_one_method_twice_the_one_whose_label_is_named_is_cross_fitted():
    twice = "evaluation={posthoc: [temperature, {name: temperature, label: by_ece, objective: ece}]}"
    spec = load_spec(SPACE, ["objective.metric=val_posthoc_by_ece_ece", twice])
    assert spec.cross_fitted == ["by_ece"]
    assert load_spec(SPACE, ["objective.metric=val_posthoc_temperature_ece", twice]).cross_fitted == ["temperature"]


def test_without_test_data_the_methods_fitted_on_validation_data_are_cross_fitted():
    measured = "evaluation={splits: [val], posthoc: [temperature, {name: vector, fitted_on: train}, isotonic]}"
    assert load_spec(SPACE, [measured]).cross_fitted == ["temperature", "isotonic"]
