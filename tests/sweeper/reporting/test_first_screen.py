"""The first screen in terminals of different widths, and on the page."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from sweeper.analysis.recalibrating import recalibrate
from sweeper.analysis.recalibration import Request
from sweeper.reporting.first_screen import (
    FirstScreen,
    comparison,
    first_screen,
    legend,
    loss_and_network,
    majority_warning,
    setting_sentence,
    settings_of,
)
from sweeper.reporting.matrix import Matrix, Measured, matrix
from sweeper.reporting.page import write_report
from sweeper.reporting.picture import picture
from sweeper.reporting.summary import summary, terminal
from sweeper.reporting.tables import posthoc_tables
from sweeper.results import Results
from sweeper.results.leaderboard import Goal, Leaderboard, leaderboard
from sweeper.results.listing import overview
from sweeper.text.cells import Row
from sweeper.text.display import as_text
from tests.sweeper.held import held
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.reporting.test_page import Page, squeezed
from tests.sweeper.synthetic_sweep import write_sweep
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
    found = first_screen(results, leaderboard(results), overview(results)).picture
    assert found is not None
    flat = " ".join(text.split())
    assert all(dot.value in flat and (width < 80 or (dot.interval in flat and dot.words in flat)) for dot in found.dots)
    assert ("─●" in text or "●─" in text) == (width >= 140) and "Loss: " in text


def test_the_page_begins_with_the_picture_and_the_answers(quickstart_folder: Path) -> None:
    text = write_report(quickstart_folder).read_text("utf-8")
    page = Page(text)
    results = held(quickstart_folder)
    found = first_screen(results, leaderboard(results), overview(results))
    assert found.matrix is not None and found.picture is not None
    summary = " ".join(page.sections["summary"].split())
    for dot in found.picture.dots:
        assert f"{dot.value} ({dot.interval})" in summary if dot.interval else dot.value in summary
        assert dot.words in summary and dot.configuration in summary
    for answer in found.answers:
        assert squeezed(answer.sentence) in squeezed(summary), answer.question
    for setting in found.asked:
        assert setting.answer in summary
    assert text.index('class="picture"') < text.index('class="answers"') < text.index('class="tiles"')
    assert legend(found.matrix, found.picture) in summary


def screen(folder: Path) -> FirstScreen:
    results = held(folder)
    return first_screen(results, leaderboard(results), overview(results))


def sentences(folder: Path) -> dict[str, str]:
    return dict(screen(folder).answers)


def test_every_question_of_the_quickstart_is_answered(quickstart_folder: Path) -> None:
    said = sentences(quickstart_folder)
    assert list(said) == ["Best", "Loss", "Network", "Which γ", "Temperature"]
    best = leaderboard(held(quickstart_folder)).best
    assert best is not None and said["Best"].startswith(f"{best['trial']}, ")
    assert str(best["loss"]) in said["Loss"] and str(best["architecture"]) in said["Network"]
    for name in ("cross_entropy", "focal", "inverse_focal", "selective_risk"):
        assert name in said["Loss"]


def test_what_is_undecided_stands_above_the_best_mean(quickstart_folder: Path) -> None:
    found = screen(quickstart_folder)
    said = dict(found.answers)
    left_open = [word for word in ("Loss", "Network", "Which γ") if said[word].startswith("undecided")]
    assert left_open
    undecided = f"Undecided: {', '.join(word.removeprefix('Which ').lower() for word in left_open)}."
    assert re.fullmatch(
        re.escape(undecided) + r" Test ECE after [a-z_ ]+: (lower|higher|no clear change)\.", found.verdict
    ), found.verdict
    assert found.scaled.split(": ")[1] in said["Temperature"].split(". ")[0]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(terminal(found))
    text = console.export_text()
    assert text.index(found.verdict) < text.index("best mean")


def test_post_hoc_effects_are_those_of_the_finished_trials(quickstart_folder: Path) -> None:
    said = sentences(quickstart_folder)["Temperature"]
    rows = means(quickstart_folder, "test", ["ece", "posthoc_temperature_ece"]).query("status == 'completed'")
    best = leaderboard(held(quickstart_folder)).best
    assert best is not None
    own = rows.reset_index().set_index("trial").loc[best["trial"]]
    assert said.startswith(
        f"{best['trial']}'s test ECE {own['ece']:.4f} → {own['posthoc_temperature_ece']:.4f}, no clear change. "
    )
    before, after = rows["ece"].mean(), rows["posthoc_temperature_ece"].mean()
    moved = r"by [+−]\S+ \(95 % [+−]\S+ … [+−]\S+\), (lower|higher|no clear change)\."
    assert re.search(rf"Mean of {len(rows)} finished trials: {before:.4f} → {after:.4f}, {moved}", said), said


def test_methods_of_one_name_are_told_in_the_order_of_the_file_and_apart(tmp_path: Path) -> None:
    sweep = Inline(tmp_path).run("two")
    recalibrate(sweep, [Request("temperature", 15, {"objective": "ece"})])
    best = leaderboard(Results(sweep.paths.root)).best
    assert best is not None
    rows = Results(sweep.paths.root).rows(
        f"SELECT avg(f.ece), avg(f.posthoc_temperature_ece), avg(r.ece) FROM final f JOIN recalibrations r "
        f"USING (trial, replicate, epoch, split) WHERE trial = '{best['trial']}' AND split = 'test' "
        f"AND r.method = 'temperature'"
    )
    before, by_nll, by_ece = (f"{value:.4f}" for value in rows[0].values())
    assert by_nll != by_ece
    said = sentences(sweep.paths.root)["Temperature"]
    assert f"ECE {before} → {by_nll} by temperature, " in said, said
    assert f"; {before} → {by_ece} by temperature (objective=ece), " in said, said


def test_fits_at_their_bound_are_warned_of(tmp_path: Path) -> None:
    folder = Inline(tmp_path).run("bound").paths.root
    for file in (folder / "tables" / "evaluations").rglob("*.parquet"):
        table = pq.read_table(file)
        at = table.schema.get_field_index("posthoc_temperature_at_bound")
        field = table.schema.field(at)
        pq.write_table(table.set_column(at, field, pa.array([1] * len(table), field.type)), file)
    results = Results(folder)
    said = dict(first_screen(results, leaderboard(results), overview(results)).answers)["Warning"]
    assert re.match(r"validation data do not determine (\d+) of \1 fits of temperature, which ended at", said)
    assert "at bound" in str(posthoc_tables(results))


def test_a_majority_class_predictor_is_warned_of(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    row = {
        "trial": "c00000", "status": "completed", "judged": 0.01, "val_accuracy": 0.667, "val_majority_share": 0.667,
        "val_balanced_accuracy": 0.5,
    }  # fmt: skip
    board = Leaderboard([row], (), "", Goal("val_ece", "min"))
    better = {**row, "trial": "c00001", "judged": 0.02, "val_balanced_accuracy": 0.8}
    (guard,) = majority_warning(results, Leaderboard([row, better], (), "", Goal("val_ece", "min")))
    assert "constraints: [{metric: val_balanced_accuracy" in guard.sentence
    (warning,) = majority_warning(results, board)
    assert "validation accuracy 66.7%, largest class 66.7%, balanced accuracy 50.0%" in warning.sentence
    assert "no finished configuration has a higher one: train longer" in warning.sentence
    imported = SimpleNamespace(specification={"loop": "imported"})
    assert majority_warning(imported, board)[0].sentence.endswith("no finished configuration has a higher one.")  # type: ignore[arg-type]
    assert majority_warning(results, Leaderboard([{**row, "val_accuracy": 0.9}], (), "", Goal("val_ece", "min"))) == []
    assert (
        majority_warning(results, Leaderboard([{**row, "val_majority_share": None}], (), "", Goal("val_ece", "min")))
        == []
    )
    assert majority_warning(results, Leaderboard([], (), "", Goal("val_ece", "min"))) == []


def test_without_measurements_there_is_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("objective: {metric: val_nll, mode: min}")
    found = screen(tmp_path)
    assert [answer.sentence for answer in found.answers] == ["No trial has been evaluated yet."]
    assert found.settings == [] and found.matrix is None and found.picture is None


def test_the_settings_of_a_data_set_are_kept_apart(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    board = leaderboard(results)
    axis = "config_dataset_label_noise"
    rows = [{**row, axis: (0.0, 0.1)[at % 2]} for at, row in enumerate(board.rows)]
    split = matrix(results, Leaderboard(rows, (*board.varying, axis), board.sql, board.objective))
    assert split is not None
    assert split.slices == ["label noise 0", "label noise 0.1"]
    said = loss_and_network(split)
    assert [answer.question for answer in said] == ["Loss", "Network"]
    assert all(re.match(r"At label noise 0: .*\. At label noise 0.1: .*\.$", answer.sentence) for answer in said)
    drawn = picture(split)
    assert [dot.place for dot in drawn.dots] == sorted(dot.place for dot in drawn.dots)
    together = sum(len(part) for part in split.cells.values())
    assert together == sum(row["status"] != "failed" for row in rows)
    assert pytest.approx(0.0) == split.best("label noise 0")[axis]


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
    measured = Measured("validation NLL", values, False, dict.fromkeys(values, ""), dict.fromkeys(values, 1))
    cells = {("", "focal", "mlp"): rows}
    return Matrix(cells, measured, None, measured, (None, None), [GAMMA, RATE])


def answer_of(found: Matrix) -> tuple[str, int]:
    (setting,) = settings_of(found)
    return setting.answer, setting.compared


def test_values_with_all_else_equal_are_compared() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1), (3.0, 0.102), (5.0, 0.3))]
    assert answer_of(matrix_of(done)) == ("2 or 3 may be the best of 4 values (90 %); best mean: 2", 4)


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
    assert found[0].answer == "undecided: 3 values trained to the end, with lr 0.03 to 0.14"
    assert setting_sentence(found).endswith("with lr 0.03 to 0.14 (`sweeper run which_gamma` compares γ alone).")
    both = setting_sentence([*found, *found])
    assert both.startswith("undecided: no two values of γ were trained to the end with all else equal")


def test_what_was_stopped_is_not_compared() -> None:
    drawn = [(1.0, 0.1, "completed", 0.1), (2.0, 0.1, "early_stopped", 0.9), (3.0, 0.1, "early_stopped", 0.8)]
    assert answer_of(matrix_of(drawn)) == ("undecided: 1 of 3 values trained to the end", 0)


def test_a_grid_is_averaged_over_the_settings_at_which_all_values_were_tried() -> None:
    grid = [(g, r, "completed", v * f) for g, v in ((1.0, 0.1), (2.0, 0.2)) for r, f in ((0.1, 1.0), (0.2, 2.0))]
    answer, compared = answer_of(matrix_of([*grid, (3.0, 0.1, "early_stopped", 0.5)]))
    assert answer == "1 is the best of 2 values (90 %), on average over 2 settings of the rest" and compared == 2


def test_one_seed_each_decides_nothing() -> None:
    done = [(gamma, 0.1, "completed", value) for gamma, value in ((1.0, 0.2), (2.0, 0.1))]
    assert answer_of(matrix_of(done, seeds=1)) == ("undecided: one seed each", 0)


def losses_of(trials: list[tuple[str, str, str, int, float]]) -> Matrix:
    """Configurations of (loss, network, status, epoch, true validation NLL), five seeds each that spread by 1 %."""
    rng = np.random.default_rng(0)
    cells: dict[tuple[str, str, str], list[Row]] = {}
    values = {}
    for at, (loss, network, status, epoch, value) in enumerate(trials):
        name = f"c{at:05d}"
        cells.setdefault(("", loss, network), []).append({"trial": name, "status": status, "epochs": epoch})
        values[name] = {epoch: {100 * at + r: value * (1 + 0.01 * rng.normal()) for r in range(5)}}
    measured = Measured("validation NLL", values, False, dict.fromkeys(values, ""), dict.fromkeys(values, 1))
    return Matrix(cells, measured, None, measured, (None, None), [])


def test_a_loss_is_named_undecided_worse_or_not_compared() -> None:
    done = [("a", "mlp", "completed", 27, 0.1), ("b", "mlp", "completed", 27, 0.1005)]
    done += [("c", "mlp", "completed", 27, 0.3), ("d", "mlp", "early_stopped", 9, 0.2)]
    assert comparison(losses_of(done), "", 1) == (
        "undecided between a and b; c is worse (90 %); d not trained to the end, so not compared."
    )
    assert comparison(losses_of([done[0], done[2]]), "", 1) == "a; c is worse (90 %)."
    one = losses_of(done)
    for found in one.decides.values.values():
        for epoch, values in found.items():
            found[epoch] = dict([*values.items()][:1])  # type: ignore[index]
    assert comparison(one, "", 1) == "a has the best mean. One replicate each: differences cannot be judged."


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_finite_is_said_and_everything_else_is_written(tmp_path: Path, value: float) -> None:
    folder = write_sweep(tmp_path / "s", configurations=8)
    for file in (
        path for name in ("evaluations", "epochs") for path in (folder / "tables" / name).glob("**/*.parquet")
    ):
        table = pq.read_table(file)
        for at, column in enumerate(table.schema):
            if pa.types.is_floating(column.type) and not column.name.startswith("config_"):
                table = table.set_column(at, column, pa.array([value] * len(table), column.type))
        pq.write_table(table, file)
    assert "nothing finite was measured" in as_text(summary(Results(folder)))
    write_report(folder)
    assert "nothing finite was measured" in (folder / "report.html").read_text("utf-8")
