"""What is suggested for a name that there is not."""

from __future__ import annotations

import pytest

from trainables.registry.names import did_you_mean, measured_as, nearest


def test_the_nearest_name_or_all_names():
    assert did_you_mean("gama", ("gamma", "rate")) == "; did you mean 'gamma'?"
    assert did_you_mean("zzz", ("gamma", "rate")) == "; known: gamma, rate"
    assert did_you_mean("zzz", ()) == ""


def test_the_nearest_name_alone():
    assert nearest("quickstrat", {"quickstart": 1, "loss_families": 2}) == "; did you mean 'quickstart'?"
    assert nearest("zzz", ["gamma"]) == nearest("gamma", []) == ""


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
