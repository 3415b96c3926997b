"""What a curvature statistic declares reaches columns, labels and what people are shown."""

from __future__ import annotations

import pytest

from sweeper.core.columns import evaluation_columns
from sweeper.core.labels import label
from tests.trainables.registered import register
from trainables.curvature import CURVATURE_FIELDS, CurvatureSettings
from trainables.curvature.statistics.base import STATISTICS, Statistic, headline_columns


def test_every_statistic_of_both_losses_is_a_column():
    columns = [name for name in evaluation_columns(()) if name.startswith("hessian_")]
    assert columns == [f"hessian_{loss}_{n}" for loss in ("cross_entropy", "training") for n in CURVATURE_FIELDS] + [
        "hessian_unavailable"
    ]


def test_a_new_headline_is_shown_under_its_label(monkeypatch):
    condition = Statistic("condition", lambda found: 1.0, label="κ", headline=True)
    register(monkeypatch, STATISTICS, "condition", condition)
    assert headline_columns()[2::3] == ("hessian_cross_entropy_condition", "hessian_training_condition")
    assert label("hessian_training_condition") == "training κ"


def test_further_groups_are_columns_only_where_they_are_asked_for():
    asked = {"losses": ["training", "tempered"], "statistics": ["fisher"]}
    further = sorted({*evaluation_columns(["temperature"], curvature=asked)} - {*evaluation_columns(["temperature"])})
    tempered = [f"hessian_tempered_temperature_{n}" for n in (*CURVATURE_FIELDS, "fisher_trace", "fisher_trace_se")]
    assert further == sorted([*tempered, "hessian_training_fisher_trace", "hessian_training_fisher_trace_se"])
    assert evaluation_columns(["temperature"], curvature=False) == evaluation_columns(["temperature"])
    with pytest.raises(ValueError, match=r"statistics = .'unknown'.*fisher"):
        CurvatureSettings.from_mapping({"statistics": ["unknown"]})
