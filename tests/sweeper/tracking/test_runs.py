"""What MLflow is told about a sweep, without MLflow."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from sweeper.core.ids import SweepPaths
from sweeper.journal.state import ENDED
from sweeper.space.loading import load_spec
from sweeper.space.spec import Objective
from sweeper.tracking.base import SWEEP_RUN, TrackedSweep
from sweeper.tracking.points import MOST_EPOCHS, MOST_TRIALS, epoch_points, evaluation_points, thinned
from sweeper.tracking.runs import RunProjection, unavailable_texts
from tests.sweeper.records import made_record
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import mean_objective

VALUES = st.floats(-1e6, 1e6)


def projection_of(
    drawn: Sequence[Mapping[str, object]], varying: Sequence[str] = (), metric: str = "val_nll"
) -> RunProjection:
    """Return the projection of a sweep with these configurations before its first record."""
    spec = load_spec("quickstart").model_copy(update={"objective": Objective(metric=metric)})
    return RunProjection(TrackedSweep(SweepPaths(Path("s")), spec, {}, drawn, varying), {}, {})


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
    assert found.keys() == {
        "calibration/val_mce", "curvature/hessian_training_trace", "test_nll", "other/test_aurc"
    }  # fmt: skip
    assert found["test_nll"] == (0.6, 3)
    assert math.isnan(found["other/test_aurc"][0])
    assert unavailable_texts(rows) == {"posthoc_temperature_unavailable": "all right"}


def test_at_the_end_the_evaluation_of_the_kept_weights_counts_as_for_the_scheduler() -> None:
    """With `checkpoint: best_val_nll` the last epoch's own value is of weights that are gone."""
    key = {"replicate": 0, "epoch": 4, "val_accuracy": 0.5}
    epochs = [{**key, "epoch": 3, "val_nll": 0.4}, {**key, "val_nll": 2.4}, {**key, "replicate": 1, "val_nll": 2.2}]
    ended = [
        {"replicate": number, "epoch": 4, "split": "val", "stage": "end", "nll": value, "mce": 0.1}
        for number, value in enumerate((0.6, 0.7))
    ]
    runs = projection_of([Configuration({"loss": {"name": "brier"}})])
    runs.apply(made_record(0, "started", 1.0, {"configuration": 0, "attempt": 1}))
    runs.apply(made_record(1, "report", 2.0, {"epoch": 4, "epochs": epochs, "evaluations": ended}))
    (update,) = runs.take()
    points = [(point.key, point.step, point.value) for point in update.points if point.key == "val_nll"]
    assert points == [("val_nll", 3, 0.4), ("val_nll", 4, pytest.approx(0.65))]
    assert mean_objective("val_nll", epochs, ended) == pytest.approx(0.65)


def test_how_a_number_was_computed_is_no_metric_and_a_standard_error_has_no_spread() -> None:
    key = {"trial": "c00000", "epoch": 3, "split": "test", "stage": "end"}
    more = {"hessian_training_matvecs": 6, "posthoc_temperature_converged": True, "ece_se": 0.01}
    rows = [{**key, "replicate": replicate, "ece": 0.1 * replicate, **more} for replicate in range(2)]
    assert {name for name, *_ in evaluation_points(rows)} == {
        "test_ece", "test_ece_std", "calibration/test_ece_se"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("trials", "others"),
    [(MOST_TRIALS, {"other/val_top5", "calibration/val_region_ambiguous"}), (MOST_TRIALS + 1, set())],
)
def test_the_largest_sweeps_log_what_is_compared_and_the_objective(trials: int, others: set[str]) -> None:
    drawn = [Configuration({"loss": {"name": "brier"}, "optimizer": {"lr": 0.3}})] * trials
    columns = ("nll", "top5", "region_ambiguous", "entropy_wrong", "posthoc_temperature_nll", "hessian_training_trace")
    row = {"replicate": 0, "epoch": 3, "split": "val", "stage": "end", **dict.fromkeys(columns, 0.5)}
    runs = projection_of(drawn, metric="val_entropy_wrong")
    runs.apply(made_record(0, "attempt", 1.0, {"attempt": 1}))
    runs.apply(made_record(1, "started", 2.0, {"configuration": 7, "attempt": 1}))
    runs.apply(made_record(2, "report", 3.0, {"configuration": 7, "epoch": 3, "evaluations": [row]}))
    (update,) = (update for update in runs.take() if update.place == 7)
    core = {"posthoc/val_posthoc_temperature_nll", "other/val_entropy_wrong", "curvature/hessian_training_trace"}
    assert {point.key for point in update.points} == core | others


def test_a_run_has_the_configuration_that_was_suggested_and_none_before_its_trial_begins() -> None:
    values = {"loss": {"name": "focal", "gamma": 2.5}, "optimizer": {"lr": 0.1}}
    drawn = [Configuration({"loss": {"name": "brier"}, "optimizer": {"lr": 0.3}})] * 2
    varying = ("config_loss_name", "config_loss_gamma")
    runs = projection_of(drawn, varying)
    suggested = {"configuration": 1, "values": values, "choices": {}, "config_hash": "", "searcher": "x 1"}
    runs.apply(made_record(0, "attempt", 1.0, {"attempt": 1}))
    runs.apply(made_record(1, "suggested", 2.0, suggested))
    assert [update.place for update in runs.take()] == [SWEEP_RUN]
    runs.apply(made_record(2, "started", 3.0, {"configuration": 1, "attempt": 1}))
    (update,) = runs.take()
    assert update.place == 1 and update.start_time == 3000
    own = {"config_loss_name": "focal", "config_loss_gamma": "2.5"}
    assert update.params == {**own, "config_optimizer_lr": "0.1"} and {*[*update.params][:2]} == {*own}, (
        "what varies first"
    )
    assert update.identity["config_hash"] == Configuration(values).digest


@pytest.mark.parametrize(("epochs", "every"), [(27, 1), (1000, 1), (1001, 2), (50_000, 50)])
def test_a_long_run_has_a_thousand_points_of_a_measurement_and_all_that_was_evaluated(epochs: int, every: int) -> None:
    rows = [{"replicate": 0, "epoch": epoch, "val_nll": 0.1} for epoch in range(1, epochs + 1)]
    evaluated = [{"epoch": 7}, {"epoch": epochs}]
    kept = [row["epoch"] for row in thinned(rows, epochs, evaluated)]
    assert len(kept) <= MOST_EPOCHS + len(evaluated) and kept == sorted(kept)
    assert {7, epochs, *range(every, epochs, every)} == {*kept}


def test_the_sweeps_run_has_its_counts_once_and_the_recommended_configurations_metrics() -> None:
    runs = projection_of([Configuration({"loss": {"name": "brier"}})])
    runs.apply(made_record(0, "attempt", 1.0, {"attempt": 1}))
    runs.apply(made_record(1, "ended", 2.0, {"outcome": "finished"}))
    (counted,) = runs.take()
    assert {point.key for point in counted.points} == {f"trials_{status}" for status in ENDED}
    runs.recommend({"test_ece": 0.25})
    (recommended,) = runs.take()
    assert [*recommended.points] == [("recommended/test_ece", 0.25, 2000, 1)]
    assert not runs.take()


def test_a_verdict_is_a_tag_of_the_trials_that_began() -> None:
    runs = projection_of([Configuration({"loss": {"name": name}}) for name in ("brier", "focal")])
    runs.apply(made_record(0, "attempt", 1.0, {"attempt": 1}))
    runs.apply(made_record(1, "started", 2.0, {"configuration": 0, "attempt": 1}))
    runs.take()
    runs.judge({0: {"verdict": "best"}, 1: {"verdict": "worse"}})
    assert [(update.place, update.tags["verdict"]) for update in runs.take()] == [(0, "best")]
