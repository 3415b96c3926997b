"""What MLflow is told about a sweep, without MLflow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.core.ids import config_hash
from sweeper.tracking.points import MOST_EPOCHS, epoch_points, epochs_between_points, evaluation_points, thinned
from sweeper.tracking.runs import SWEEP_RUN, RunProjection, SweepDescription, unavailable_texts
from tests.sweeper.records import made_record

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


def test_a_run_has_the_configuration_that_was_suggested_and_none_before_its_trial_begins() -> None:
    values = {"loss": {"name": "focal", "gamma": 2.5}, "optimizer": {"lr": 0.1}}
    drawn = [{"loss": {"name": "brier"}, "optimizer": {"lr": 0.3}}] * 2
    varying = frozenset({"config_loss_name", "config_loss_gamma"})
    runs = RunProjection(SweepDescription("s", "id", "", drawn, varying, {}), {})
    suggested = {"configuration": 1, "values": values, "choices": {}, "config_hash": "", "searcher": "x 1"}
    runs.apply(made_record(0, "attempt", 1.0, {"attempt": 1}))
    runs.apply(made_record(1, "suggested", 2.0, suggested))
    assert [update.place for update in runs.take()] == [SWEEP_RUN]
    runs.apply(made_record(2, "started", 3.0, {"configuration": 1, "attempt": 1}))
    (update,) = runs.take()
    assert update.place == 1 and update.start_time == 3000
    assert update.params == {"config_loss_name": "focal", "config_loss_gamma": "2.5"}
    assert update.identity["config_hash"] == config_hash(values)


@pytest.mark.parametrize(("epochs", "every"), [(27, 1), (1000, 1), (1001, 2), (50_000, 50)])
def test_a_long_run_has_a_thousand_points_of_a_measurement_and_all_that_was_evaluated(epochs: int, every: int) -> None:
    assert epochs_between_points(epochs) == every
    rows = [{"replicate": 0, "epoch": epoch, "val_nll": 0.1} for epoch in range(1, epochs + 1)]
    evaluated = [{"epoch": 7}, {"epoch": epochs}]
    kept = [row["epoch"] for row in thinned(rows, every, evaluated)]
    assert len(kept) <= MOST_EPOCHS + len(evaluated) and kept == sorted(kept)
    assert {7, epochs} <= {*kept} and (every > 1 or len(kept) == epochs)
