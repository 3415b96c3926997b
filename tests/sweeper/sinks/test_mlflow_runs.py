"""What MLflow is told about a sweep, without MLflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.sinks.mlflow_runs import epoch_points, evaluation_points, unavailable_texts

VALUES = st.floats(-1e6, 1e6)


@given(st.dictionaries(st.integers(1, 30), st.lists(VALUES, min_size=1, max_size=5), min_size=1, max_size=5))
def test_epoch_metrics_are_means_over_replicates_with_their_sample_deviation(epochs: dict[int, list[float]]) -> None:
    rows = [
        {"trial": "c00000", "replicate": replicate, "epoch": epoch, "val_nll": value}
        for epoch, values in epochs.items()
        for replicate, value in enumerate(values)
    ]
    found = {(key, step): value for key, value, step in epoch_points(rows)}
    for epoch, values in epochs.items():
        assert found["val_nll", epoch] == pytest.approx(np.mean(values), abs=1e-6)
        if len(values) > 1:
            assert found["val_nll_std", epoch] == pytest.approx(np.std(values, ddof=1), abs=1e-6)
        else:
            assert ("val_nll_std", epoch) not in found


def test_evaluation_metrics_carry_their_split_except_the_hessians_and_repeat_no_epoch_metric() -> None:
    key = {"trial": "c00000", "replicate": 0, "epoch": 3, "stage": "rung"}
    rows = [
        {**key, "split": "val", "nll": 0.5, "mce": 0.1, "hessian_training_trace": 9.0, "top5": None},
        {**key, "split": "test", "nll": 0.6, "posthoc_temperature_unavailable": "all right", "aurc": math.nan},
    ]
    found = {name: (value, step) for name, value, step in evaluation_points(rows)}
    assert found.keys() == {"val_mce", "hessian_training_trace", "test_nll", "test_aurc"}
    assert found["test_nll"] == (0.6, 3)
    assert math.isnan(found["test_aurc"][0])
    assert unavailable_texts(rows) == {"posthoc_temperature_unavailable": "all right"}
