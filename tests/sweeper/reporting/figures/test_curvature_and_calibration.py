"""Correlations of sharpness with calibration, and what accuracy leaves of them."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.core.statistics.basics import partial_correlation, ranks
from sweeper.reporting.figures.configurations import correlated
from sweeper.reporting.figures.curvature_and_calibration import sharpness_correlations, sharpness_panel
from tests.sweeper.reporting.figures.drawn import layers, marks


def rows_of(n: int, seed: int = 0) -> list[dict[str, object]]:
    """Sharpness and ECE both follow accuracy, and nothing else."""
    rng = np.random.default_rng(seed)
    accuracy = rng.normal(size=n)
    sharp, ece = (accuracy + 0.4 * rng.normal(size=n) for _ in range(2))
    return [
        {"architecture": "mlp", "accuracy": a, "sam": s, "ece": e, "empty": None}
        for a, s, e in zip(accuracy, sharp, ece, strict=True)
    ]


def test_accuracy_explains_what_both_follow() -> None:
    found = sharpness_correlations(rows_of(60), ["sam", "empty"], "ece")
    plain, given = found["sam"]
    assert plain is not None and plain.interval is not None and plain.interval[0] > 0.5
    assert given is not None and given.interval is not None and given.interval[0] < 0 < given.interval[1]
    assert "empty" not in found


def test_the_partial_correlation_is_kendalls_but_for_ranking_once_more() -> None:
    rng = np.random.default_rng(1)
    x, y, z = rng.normal(size=(3, 200)) + rng.normal(size=200)
    found = partial_correlation([*x], [*y], [*z])
    xy, xz, yz = (np.corrcoef(ranks(a), ranks(b))[0, 1] for a, b in ((x, y), (x, z), (y, z)))
    assert found is not None
    assert found.rho == pytest.approx((xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2)), abs=0.03)


def test_what_follows_accuracy_exactly_has_none() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert partial_correlation(values, [-each for each in values], values) is None


def test_a_panel_has_the_intervals() -> None:
    found = sharpness_correlations(rows_of(30), ["sam"], "ece")
    for place, rho in enumerate(found["sam"]):
        drawn = sharpness_panel("ece", {"all": found, "none": {}}, ["all", "none"], place)
        assert drawn.heading.endswith("given accuracy") == bool(place)
        (row,) = marks(drawn, "point")
        bar = layers(drawn, "rule")[-1]["data"]["values"][0]
        assert row["rho"] == rho.rho and (bar["low"], bar["high"]) == pytest.approx(rho.interval)
    assert marks(sharpness_panel("ece", {"none": {}}, ["none"], 0), "point") == []


def test_a_training_that_is_repeated_is_one_pair() -> None:
    few = [{"gamma": float(k), "lambda_max": float(k * k)} for k in range(2)]
    assert correlated(few * 3, "gamma", "lambda_max") == "n = 2, too few for ρ"
    more = [{"gamma": float(k), "lambda_max": (k - 3.3) ** 2} for k in range(8)]
    assert correlated([*more, *more, {"gamma": None}], "gamma", "lambda_max") == correlated(more, "gamma", "lambda_max")
