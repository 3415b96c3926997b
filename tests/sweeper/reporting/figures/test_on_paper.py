"""The report's figures on paper: whole files in every format, the figure's own numbers, refusals in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

import sweeper
from sweeper.reporting.figures import FIGURES
from sweeper.reporting.figures.base import Figure, Panel, colour, points, quantity
from sweeper.reporting.figures.drawing import on_paper, write_report_figure
from sweeper.results import Results
from tests.sweeper.held import held

NO_DATA = {
    "lines",
    "trace_regularisation",
    "posthoc_temperature",
    "refinement",
    "shift",
    "curvature_by_layer",
    "sharpness_and_calibration",
}
"""What this sweep has no data for."""


@pytest.fixture(scope="module")
def results(quickstart_folder) -> Results:
    return held(quickstart_folder)


@pytest.mark.parametrize("name", sorted(set(FIGURES) - NO_DATA - {"loss_families"}))
def test_every_figure_of_the_report_can_be_drawn(name, results, tmp_path):
    write_report_figure(results, name, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text("utf-8")
    assert text.startswith("<svg") and "var(--" not in text and text.count("<path") > 10
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]


@pytest.mark.integration
def test_files_are_vectors_with_embedded_fonts_and_the_same_every_time(results, tmp_path):
    write_report_figure(results, "importance", tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"/FontFile" in content and b"/Type3" not in content
    write_report_figure(results, "importance", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    for name in ("lambda_max_against_gamma", "curvature_against_gamma", "curvature-against-gamma"):
        write_report_figure(results, name, tmp_path / f"{name}.svg")
    assert len({file.read_bytes() for file in tmp_path.glob("*.svg")}) == 1


ROWS = [{"x": at, "y": at**2, "kind": "ab"[at % 2], "status": "completed"} for at in range(1, 9)]


def figure(**changes: Any) -> Figure:
    """Two panels of points in two colours."""
    layers = [points(ROWS, color=colour("kind", ["a", "b"]))]
    panels = [Panel(f"{name} λ", layers, quantity("x", "eggs"), quantity("y", "ham"), ["ρ = 1."]) for name in "AB"]
    return Figure("Title", "What is shown.", [], panels, legend=["a", "b"], **changes)


def test_a_rehearsals_figure_says_so(results, tmp_path, monkeypatch):
    monkeypatch.setattr(Results, "rehearsed", property(lambda self: ["10 trials instead of 1,000"]))
    write_report_figure(results, "importance", tmp_path / "figure.svg")
    assert "Rehearsal, no results." in (tmp_path / "figure.svg").read_text("utf-8")


def test_legends_and_parameters_of_the_page_are_not_those_of_paper():
    whole = str(on_paper(figure()))
    assert "'brush'" not in whole and "tooltip" not in whole


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("learning_curve", "a.pdf", "the report has no figure 'learning_curve'"),
        ("learning_curves", "a.jpeg", "cannot be written as 'a.jpeg'"),
        ("trace_regularisation", "a.pdf", "has nothing for this figure"),
        ("importance", "missing/a.pdf", "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(name, file, said, results, tmp_path):
    with pytest.raises(sweeper.SweeperError, match=said):
        write_report_figure(results, name, tmp_path / file)
    assert not any(tmp_path.iterdir())
