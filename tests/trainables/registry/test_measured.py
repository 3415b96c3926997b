"""An objective's name says where its value stands."""

import pytest

from trainables.registry.measured import measured_as


@pytest.mark.parametrize(
    ("metric", "place"),
    [
        ("val_nll", ("val", "nll")),
        ("val_refinement_nll", ("val", "refinement_nll")),
        ("train_loss", ("train", "loss")),
        ("val_posthoc_focal_temperature_ada_ece", ("val", "cross_fitted_focal_temperature_ada_ece")),
        ("test_posthoc_temperature_ece", ("test", "posthoc_temperature_ece")),
        ("hessian_training_trace", ("val", "hessian_training_trace")),
    ],
)
def test_split_and_column(metric, place):
    assert measured_as(metric) == place
