"""The first screen in terminals of different widths, and on the page."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from sweeper.analysis.recalibration.request import effects
from sweeper.reporting.first_screen import (
    FirstScreen,
    answers,
    first_screen,
    legend,
    majority_warning,
    setting_sentence,
    settings_of,
)
from sweeper.reporting.matrix import Matrix, Measured, grid, matrix
from sweeper.reporting.page import write_report
from sweeper.reporting.summary import terminal
from sweeper.results.leaderboard import Goal, Leaderboard, leaderboard
from sweeper.results.overview import overview
from sweeper.text.cells import Row
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


GAMMA, RATE = "config_loss_gamma", "config_optimizer_lr"


def matrix_of(trials: list[tuple[float, float, str, float]], seeds: int = 5) -> Matrix:
    """Configurations of (γ, learning rate, status, true validation NLL), each with seeds that spread by 1 %."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    values = {}
    for at, (gamma, rate, status, value) in enumerate(trials):
        name, epoch = f"c{at:05d}", 27 if status == "completed" else 3
        rows.append({"trial": name, "status": status, "epochs": epoch, GAMMA: gamma, RATE: rate})
        values[name] = {epoch: {100 * at + r: value * (1 + 0.01 * rng.normal()) for r in range(seeds)}}
    names = dict.fromkeys(values, "mlp")
    measured = Measured("validation NLL", values, False, names, dict.fromkeys(values, ""), dict.fromkeys(values, 1))
    cells = {("", "focal", "mlp"): rows}
    return Matrix(cells, measured, None, measured, (None, None), [GAMMA, RATE])


def answer_of(found: Matrix) -> tuple[str, int]:
    (setting,) = settings_of(found)
    return setting.answer, setting.compared


def test_values_with_all_else_equal_are_compared() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1), (3.0, 0.102), (5.0, 0.3))]
    assert answer_of(matrix_of(done)) == ("2 or 3 may be the best of 4 values (90 %) (best mean: 2)", 4)


def test_one_that_stands_alone_is_the_best() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1), (3.0, 0.15), (5.0, 0.3))]
    assert answer_of(matrix_of(done)) == ("2 is the best of 4 values (90 %)", 4)


def test_values_that_cannot_be_told_apart_are_undecided() -> None:
    done = [(gamma, 0.1, "completed", 0.1) for gamma in (1.0, 2.0, 3.0)]
    answer, compared = answer_of(matrix_of(done, seeds=2))
    assert answer == "undecided: any of the 3 values may be the best" and compared == 3


def test_a_value_drawn_with_its_learning_rate_is_undecided() -> None:
    """1.0 to 8.0 did not do as well as each other: the learning rate differs, too."""
    done = [(1.0, 0.03, "completed", 0.1), (3.7, 0.14, "completed", 0.5), (8.0, 0.05, "completed", 0.11)]
    found = settings_of(matrix_of(done))
    assert found[0].answer == "undecided: 3 values were trained to the end, with lr 0.03 to 0.14"
    assert setting_sentence(found).endswith("with lr 0.03 to 0.14 (`sweeper run which_gamma` asks only that).")
    both = setting_sentence([*found, *found])
    assert both.startswith("undecided: no two values of γ were trained to the end with all else equal")


def test_what_was_stopped_is_not_compared() -> None:
    drawn = [(1.0, 0.1, "completed", 0.1), (2.0, 0.1, "early_stopped", 0.9), (3.0, 0.1, "early_stopped", 0.8)]
    assert answer_of(matrix_of(drawn)) == ("undecided: of 3 values 1 was trained to the end", 0)


def test_a_grid_is_averaged_over_the_settings_at_which_all_values_were_tried() -> None:
    grid = [(g, r, "completed", v * f) for g, v in ((1.0, 0.1), (2.0, 0.2)) for r, f in ((0.1, 1.0), (0.2, 2.0))]
    answer, compared = answer_of(matrix_of([*grid, (3.0, 0.1, "early_stopped", 0.5)]))
    assert answer == "1 is the best of 2 values (90 %), on average over 2 settings of the rest" and compared == 2


def test_one_seed_each_decides_nothing() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1))]
    assert answer_of(matrix_of(done, seeds=1)) == ("undecided: one seed each", 0)
