"""The report's figures on paper: whole files in every format, the figure's own numbers, refusals in a sentence."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure as Drawn

import sweeper
from sweeper.figures import FIGURES, rungs
from sweeper.figures.on_paper import without_tags, write_report_figure
from sweeper.results import Results
from tests.sweeper.synthetic_sweep import write_sweep

NO_DATA = {"trace_regularisation", "posthoc_temperature", "shift", "curvature_by_layer", "sharpness_and_calibration"}
"""What this sweep has no data for."""

REFUSED = {"parallel_coordinates"} | NO_DATA
"""And one that paper cannot show."""


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    return Results(write_sweep(tmp_path_factory.mktemp("picture") / "made"))


@pytest.mark.parametrize("name", sorted(set(FIGURES) - REFUSED - {"loss_families"}))
def test_every_figure_of_the_report_can_be_drawn(name, results, tmp_path):
    write_report_figure(results, name, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text("utf-8").startswith("<?xml")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]


@pytest.mark.integration
def test_files_are_vectors_with_embedded_fonts_and_the_same_every_time(results, tmp_path):
    write_report_figure(results, "importance", tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert content.startswith(b"%PDF") and b"/FontFile2" in content and b"/Type3" not in content
    write_report_figure(results, "importance", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    for name in ("lambda_max_against_gamma", "curvature_against_gamma"):
        write_report_figure(results, name, tmp_path / f"{name}.svg")
    drawn = {
        (tmp_path / f"{name}.svg").read_bytes() for name in ("lambda_max_against_gamma", "curvature_against_gamma")
    }
    assert len(drawn) == 1
    for name in ("one.svg", "two.svg"):
        write_report_figure(results, "ece-against-gamma", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_picture_holds_the_reports_numbers_and_its_caption(results, tmp_path, monkeypatch):
    seen: list[Drawn] = []
    save = Drawn.savefig
    monkeypatch.setattr(Drawn, "savefig", lambda self, *a, **k: (seen.append(self), save(self, *a, **k)))
    write_report_figure(results, "learning_curves", tmp_path / "figure.png")
    expected = rungs.draw_curves(results)
    assert expected is not None
    (drawn,) = seen
    axes = drawn.axes[0]
    heights = {round(y, 9) for line in axes.lines for y in line.get_ydata() if y == y}
    wanted = {round(y, 9) for trace in expected.panels[0].marks for y in trace.y if y is not None}
    assert wanted <= heights and len(wanted) > 100
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "validation NLL"
    said = " ".join(text.get_text() for text in drawn.texts).replace("\n", " ")
    assert without_tags(expected.caption) in said
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [*expected.legend, *expected.dashes.values()]


def said_in(results, name, folder, monkeypatch) -> str:
    """Draw a figure and return the text below it."""
    seen: list[Drawn] = []
    save = Drawn.savefig
    monkeypatch.setattr(Drawn, "savefig", lambda self, *a, **k: (seen.append(self), save(self, *a, **k)))
    write_report_figure(results, name, folder / "figure.png")
    return " ".join(text.get_text() for text in seen[0].texts).replace("\n", " ")


def test_what_the_report_says_below_a_plot_is_on_paper_too(results, tmp_path, monkeypatch):
    said = said_in(results, "curvature_against_gamma", tmp_path, monkeypatch)
    expected = FIGURES["curvature_against_gamma"].build(results)
    remarks = [remark for panel in expected.panels for remark in panel.remarks]
    assert remarks and all(without_tags(remark).rstrip(".") in said for remark in remarks)
    assert any("ρ = " in remark for remark in remarks), "the caption speaks of ρ"


def test_a_rehearsals_figure_says_so(results, tmp_path, monkeypatch):
    monkeypatch.setattr(Results, "rehearsed", property(lambda self: ["10 trials instead of 1,000"]))
    assert said_in(results, "importance", tmp_path, monkeypatch).startswith("Rehearsal, no results.")


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("learning_curve", "a.pdf", "the report has no figure 'learning_curve'"),
        ("learning_curves", "a.jpeg", "cannot be written as 'a.jpeg'"),
        ("parallel_coordinates", "a.pdf", "cannot be drawn on paper"),
        ("trace_regularisation", "a.pdf", "has nothing for this figure"),
        ("importance", "missing/a.pdf", "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(name, file, said, results, tmp_path):
    with pytest.raises(sweeper.SweeperError, match=said):
        write_report_figure(results, name, tmp_path / file)
    assert not any(tmp_path.iterdir())
