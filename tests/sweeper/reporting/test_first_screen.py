"""The first screen in terminals of different widths, and on the page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.analysis.recalibration.request import effects
from sweeper.reporting.first_screen import FirstScreen, answers, first_screen, legend, majority_warning, terminal
from sweeper.reporting.matrix import grid, matrix
from sweeper.reporting.page import write_report
from sweeper.results.leaderboard import Goal, Leaderboard, leaderboard
from sweeper.results.overview import overview
from tests.sweeper.held import held
from tests.sweeper.reporting.test_page import Page
from tests.sweeper.tables_by_pandas import means


def printed(folder: Path, width: int) -> str:
    results = held(folder)
    console = Console(width=width, file=io.StringIO())
    console.print(terminal(first_screen(results, leaderboard(results), overview(results))))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [140, 100, 80, 40])
def test_no_value_is_cut_whatever_the_width(quickstart_folder: Path, width: int) -> None:
    text = printed(quickstart_folder, width)
    assert all(len(line) <= width for line in text.splitlines())
    results = held(quickstart_folder)
    found = first_screen(results, leaderboard(results), overview(results)).matrix
    assert found is not None
    flat = " ".join(text.split())
    for _, cells in grid(found, ""):
        for cell in cells:
            assert cell is None or cell.means in flat or cell.values in flat
    assert "…" in text if width >= 100 else "Loss" in text


def test_the_page_begins_with_the_matrix_and_the_answers(quickstart_folder: Path) -> None:
    text = write_report(quickstart_folder).read_text("utf-8")
    page = Page(text)
    results = held(quickstart_folder)
    found = first_screen(results, leaderboard(results), overview(results))
    assert found.matrix is not None
    summary = " ".join(page.sections["summary"].split())
    for _, cells in grid(found.matrix, ""):
        for cell in cells:
            assert cell is None or cell.values in summary
    for answer in found.answers:
        assert " ".join(answer.sentence.split()) in summary.replace(" ₘₐₓ", "_max"), answer.question
    assert text.index('id="summary"') < text.index('class="tiles"') < text.index('id="curvature-against-gamma"')
    assert legend(found.matrix, starred=False) in summary


def screen(folder: Path) -> FirstScreen:
    results = held(folder)
    return first_screen(results, leaderboard(results), overview(results))


def sentences(folder: Path) -> dict[str, str]:
    return dict(screen(folder).answers)


def test_every_question_of_the_quickstart_is_answered(quickstart_folder: Path) -> None:
    said = sentences(quickstart_folder)
    assert list(said) == ["Loss", "Network", "After temperature", "Which γ", "Post-hoc", "Early stopping"]
    best = leaderboard(held(quickstart_folder)).best
    assert best is not None
    assert said["Loss"].startswith(f"{best['loss']} on {best['architecture']}, ")
    assert said["Network"].startswith(f"{best['architecture']} with {best['loss']}, ")
    for name in ("cross_entropy", "focal", "inverse_focal", "selective_risk"):
        assert name in said["Loss"]
    counts = overview(held(quickstart_folder))
    assert said["Early stopping"].startswith(f"saved {counts.saved:,} of {counts.saved + counts.trained:,} epochs")


def test_post_hoc_effects_are_those_of_the_finished_trials(quickstart_folder: Path) -> None:
    said = sentences(quickstart_folder)["Post-hoc"]
    rows = means(quickstart_folder, "test", ["ece", "posthoc_temperature_ece", "nll", "posthoc_temperature_nll"])
    rows = rows.query("status == 'completed'")
    before, after = rows["ece"].mean(), rows["posthoc_temperature_ece"].mean()
    assert f"ECE {before:.4f} → {after:.4f}" in said
    better = int((rows["posthoc_temperature_nll"] < rows["nll"]).sum())
    assert f"better in {better} of {len(rows)} trials." in said


def test_a_majority_class_predictor_is_warned_of() -> None:
    row = {
        "trial": "c00000", "status": "completed", "judged": 0.01, "val_accuracy": 0.667, "val_majority_share": 0.667,
        "val_balanced_accuracy": 0.5,
    }  # fmt: skip
    board = Leaderboard([row], (), "", Goal("val_ece", "min"))
    better = {**row, "trial": "c00001", "judged": 0.02, "val_balanced_accuracy": 0.8}
    (guard,) = majority_warning(Leaderboard([row, better], (), "", Goal("val_ece", "min")))
    assert "constraints: [{metric: val_balanced_accuracy" in guard.sentence
    (warning,) = majority_warning(board)
    assert "validation accuracy 66.7%, largest class 66.7%, balanced accuracy 50.0%" in warning.sentence
    assert "no finished configuration has a higher one: train longer" in warning.sentence
    assert majority_warning(Leaderboard([{**row, "val_accuracy": 0.9}], (), "", Goal("val_ece", "min"))) == []
    assert majority_warning(Leaderboard([{**row, "val_majority_share": None}], (), "", Goal("val_ece", "min"))) == []
    assert majority_warning(Leaderboard([], (), "", Goal("val_ece", "min"))) == []


def test_without_measurements_there_is_nothing_to_say(quickstart_folder: Path) -> None:
    counts = overview(held(quickstart_folder))
    found = answers(None, effects([]), counts, Leaderboard([], (), "", Goal("val_nll", "min")))
    assert [answer.question for answer in found.answers] == ["Early stopping"]
    assert found.settings == [] and found.matrix is None


def test_the_settings_of_a_data_set_are_kept_apart(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    board = leaderboard(results)
    axis = "config_dataset_label_noise"
    rows = [{**row, axis: (0.0, 0.1)[at % 2]} for at, row in enumerate(board.rows)]
    split = matrix(results, Leaderboard(rows, (*board.varying, axis), board.sql, board.objective))
    assert split is not None
    assert split.slices == ["label noise 0", "label noise 0.1"]
    said = answers(split, [], overview(results), board).answers
    assert [answer.question for answer in said][:2] == ["Loss at label noise 0", "Network at label noise 0"]
    together = sum(len(part) for part in split.cells.values())
    assert together == sum(row["status"] != "failed" for row in rows)
    assert pytest.approx(0.0) == split.best("label noise 0", family=split.families()[0])[axis]
