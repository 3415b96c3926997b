"""The `evaluation.curvature` part of a search space: defaults, and all faults at once."""

import pytest

from trainables.curvature import CurvatureSettings, settings_faults


def test_defaults_hold():
    assert settings_faults({}) == []
    assert CurvatureSettings.from_mapping({}) == CurvatureSettings()


def test_reads_a_mapping():
    given = {"samples": 128, "lanczos_steps": 6, "trace_probes": 4, "losses": ["training"], "trace_precision": 0.02}
    found = CurvatureSettings.from_mapping(given)
    assert found.samples == 128
    assert found.losses == ("training",)
    assert CurvatureSettings.from_mapping({"samples": None}).samples is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lanczos_step": 3}, "did you mean 'lanczos_steps'"),
        ({"samples": 0}, "at least one sample"),
        ({"samples": 1.5}, "whole number"),
        ({"trace_probes": 1}, "two probes"),
        ({"trace_precision": 0}, r"outside \(0, 1\]"),
        ({"trace_method": "hutch"}, "one of auto, hutchinson, hutch"),
        ({"max_matvecs": 2}, "two probes"),
        ({"losses": []}, "must be a list"),
        ({"losses": ["validation"]}, "must be a list"),
        ({"spectrum": "yes"}, "true or false"),
    ],
)
def test_names_the_rule(values, words):
    with pytest.raises(ValueError, match=words):
        CurvatureSettings.from_mapping(values)


def test_names_all_faults_at_once():
    assert len(settings_faults({"samples": 0, "lanczos_steps": 0, "spectra": True})) == 3
