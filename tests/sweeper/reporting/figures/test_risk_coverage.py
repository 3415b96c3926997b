"""Risk-coverage curves against a loop over samples."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.reporting.figures.risk_coverage import COVERAGES, panel, risks
from sweeper.results.estimators import Networks, Scored
from tests.sweeper.reporting.figures.drawn import marks


def networks(seeds: int, samples: int = 200) -> Networks:
    made = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        confidence, nothing = rng.permutation(np.linspace(0.3, 1, samples)), np.zeros(samples)
        correct = (rng.uniform(size=samples) < confidence).astype(float)
        made[seed] = Scored(confidence, correct, nothing, nothing, nothing.astype(int), None)
    return made


def test_the_curve_is_the_mean_error_among_the_surest() -> None:
    of = networks(3)
    rows = risks({"aurc": of})
    assert [row["coverage"] for row in rows] == pytest.approx([*COVERAGES], abs=1e-3)
    for row, coverage in zip(rows, COVERAGES, strict=True):
        accepted = int(np.ceil(coverage * 200))
        wrong = [1 - one.correct[np.argsort(-one.confidence)[:accepted]].mean() for one in of.values()]
        assert row["risk"] == pytest.approx(np.mean(wrong))
    assert rows[-1]["low"] < rows[-1]["risk"] < rows[-1]["high"]


def test_a_single_seed_has_a_curve_without_a_band_and_a_method_that_was_not_fitted_none() -> None:
    drawn = panel("mlp", {"aurc": networks(1), "focal": {}})
    assert {row["loss"] for row in marks(drawn, "line")} == {"aurc"} and marks(drawn, "area") == []
