"""Refinement and calibration as stacked bars: they add up to the score."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import sweeper
from sweeper.reporting.figures.refinement import SCORES, draw, panel_of, parts_of
from sweeper.reporting.first_screen import first_screen
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import overview
from tests.sweeper.reporting.figures.drawn import marks
from tests.sweeper.reporting.test_first_screen import line


def test_the_parts_of_each_finalist_add_up_to_its_score(tmp_path: Path) -> None:
    settings = ["scheduler.max_epochs=1", "replicates=1", "space.loss=brier", "evaluation.curvature=false"]
    results = sweeper.run("curvature_vs_gamma", set=settings, output=tmp_path, mlflow=False, executor="local").results
    figure = draw(results)
    assert figure is not None and len(figure.panels) == len(SCORES)
    finalists = {one.trial for one in first_screen(results, leaderboard(results), overview(results)).finalists}
    for score, panel in zip(SCORES, figure.panels, strict=True):
        sums = defaultdict[str, float](float)
        for row in marks(panel, "bar"):
            sums[row["trial"]] += row["value"]
        rows = results.rows(f"SELECT trial, avg({score}) AS score FROM final WHERE split = 'test' GROUP BY trial")
        scores = {row["trial"]: row["score"] for row in rows}
        assert {*sums} == finalists
        assert sums == pytest.approx({trial: scores[trial] for trial in finalists})


def test_a_score_without_both_parts_has_no_panel(gamma_folder: Path) -> None:
    assert draw(Results(gamma_folder)) is None, "its tables hold no refinement"
    assert panel_of(line((1, 0.2), (2, 0.1)), "", "nll", parts_of(Results(gamma_folder), "test")) is None
