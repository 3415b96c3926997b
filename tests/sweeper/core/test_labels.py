"""Names of metrics and configurations as people read them."""

import pytest

from sweeper.core.labels import duration, label


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ece", "ECE"),
        ("refinement_nll", "refinement NLL"),
        ("posthoc_temperature_ada_ece", "equal-mass ECE after temperature"),
        ("posthoc_temperature_ece", "ECE after temperature"),
        ("cross_fitted_focal_temperature_nll", "NLL after focal temperature"),
        ("posthoc_temperature_temperature", "posthoc temperature temperature"),
        ("batch_size", "batch size"),
    ],
)
def test_a_metric_after_a_method_is_called_after_both(name: str, words: str) -> None:
    assert label(name) == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (45.4, "45 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3599.6, "1 h"),
        (11_400, "3 h 10 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
