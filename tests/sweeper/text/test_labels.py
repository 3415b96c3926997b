"""Names of metrics and configurations as people read them."""

from __future__ import annotations

import pytest

from sweeper.results.leaderboard import Goal
from sweeper.text.labels import label


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ece", "ECE"),
        ("refinement_nll", "refinement NLL"),
        ("posthoc_temperature_ece", "ECE after temperature"),
        ("cross_fitted_focal_temperature_nll", "NLL after focal temperature"),
        ("posthoc_temperature_temperature", "posthoc temperature temperature"),
        ("batch_size", "batch size"),
    ],
)
def test_a_metric_after_a_method_is_called_after_both(name: str, words: str) -> None:
    assert label(name) == words


def test_an_objective_after_a_method_has_its_split() -> None:
    assert Goal("val_posthoc_temperature_ece", "min").label == "validation ECE after temperature"
