"""Lines of values as figures: what is drawn at each value, and the edge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweeper.reporting.answering.answers import LARGEST, Question
from sweeper.reporting.answering.finalists import Series
from sweeper.reporting.figures.lines import panel, remarks, where
from tests.sweeper.reporting.figures.drawn import layers, marks

ROWS = {word: {"trial": f"c{at}"} for at, word in enumerate(("2", "0 (cross_entropy)", "8"))}
LINE = Series("config_loss_gamma", ("", "focal", "mlp"), ROWS, {"2": 2.0, "0 (cross_entropy)": 0.0, "8": 8.0})
VALUES = {"2": {0: 1.0, 1: 1.1}, "8": {0: 4.0, 1: 4.2}, "0 (cross_entropy)": {0: 2.0}}
ASKED = Question("γ", ("8", "2"), ("0 (cross_entropy)",), (), ("focal", "mlp"), at="lr 0.1")


def test_each_value_has_its_mean_interval_and_trial() -> None:
    drawn = panel(LINE, VALUES, "γ", "heading", "NLL", "min", [])
    rows = marks(drawn, "point")
    assert [(row["value"], row["trial"]) for row in rows] == [(0.0, "c1"), (2.0, "c0"), (8.0, "c2")]
    assert [row["mean"] for row in rows] == pytest.approx([2.0, 1.05, 4.1])
    bars = marks(drawn, "rule")
    assert [bar["value"] for bar in bars] == [2.0, 8.0], "a single seed has no interval"
    assert all(bar["low"] < row["mean"] < bar["high"] for bar, row in zip(bars, rows[1:], strict=True))
    assert layers(drawn, "line") and drawn.x["axis"] == {"values": [0.0, 2.0, 8.0], "format": ".3~g"}


def test_names_have_no_line_and_wide_values_a_logarithmic_axis() -> None:
    named = panel(replace(LINE, numbers={}), VALUES, "score", "heading", "NLL", "min", [])
    assert not layers(named, "line") and named.x["type"] == "nominal"
    wide = replace(LINE, numbers={"2": 0.01, "0 (cross_entropy)": 0.1, "8": 1.0})
    assert panel(wide, VALUES, "ν", "heading", "NLL", "min", []).x["scale"]["type"] == "log"


def test_the_edge_is_said_once_at_the_objective() -> None:
    assert where(LINE, ASKED) == "focal on mlp at lr 0.1" and remarks(ASKED, 0) == []
    edge = replace(ASKED, edge=LARGEST)
    assert len(remarks(edge, 0)) == 1 and remarks(edge, 1) == []
