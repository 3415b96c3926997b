"""A paper's table filled in from sweeps: the right rows, the right selection, nothing from rehearsals."""

import csv
import io
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml

from search_spaces import packaged_files
from search_spaces.papers.published_numbers import published_tables, read_published
from search_spaces.papers.tables import FORMULA, format_paper_table
from sweeper.core.statistics.basics import spread_text
from sweeper.results import Results
from sweeper.space.loading import load_spec
from tests.search_spaces.papers.ideal_sweeps import ideal_sweep, table_of

SPACE = "mukhoti_tables_cifar10"
COMPUTED = {name for name in published_tables() if not any(n.dataset for n in read_published(name))}


def edited(sweep: Results, output: Path, **changes: object) -> Results:
    """Return a copy of a sweep that says something else of itself."""
    folder = output / str(len([*output.iterdir()])) / sweep.name
    shutil.copytree(sweep.folder, folder, symlinks=True)
    specification = yaml.safe_load((sweep.folder / "sweep.yaml").read_text()) | changes
    (folder / "sweep.yaml").write_text(yaml.safe_dump(specification))
    return Results(folder)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """An ideal sweep of mukhoti's recipe on CIFAR-10, with three seeds, which tests only read."""
    spec = load_spec(packaged_files()[SPACE], ["replicates=3"])
    return ideal_sweep(tmp_path_factory.mktemp("ideal"), SPACE, spec, "cifar")


def test_cells_hold_the_replicates_of_the_right_configuration(sweep: Results) -> None:
    filled = {
        (c.published.architecture, c.published.loss, c.published.options.get("gamma"), c.published.metric): c
        for name in ("mukhoti-1", "mukhoti-5")
        for c in table_of(name, sweep).cells
        if c.ours is not None and not c.published.posthoc
    }
    assert {("resnet50", "cross_entropy", None, "ece"), ("wrn_26_10", "focal", "3", "ece")} <= set(filled)
    for (architecture, loss, gamma, _), cell in filled.items():
        where = f" AND config_loss_gamma = {gamma}" if gamma else ""
        where += "".join(
            f" AND config_loss_{key} = '{value}'"
            for key, value in cell.published.options.items()
            if key in ("variant", "alpha")
        )
        rows = sweep.rows(
            f"SELECT ece FROM final WHERE split = 'test' AND status = 'completed' AND config_loss_name = '{loss}' "
            f"AND config_architecture_name = '{architecture}'{where}"
        )
        values = [row["ece"] for row in rows]
        assert cell.ours is not None and cell.ours.n == len(values) == 3
        assert cell.ours.mean == pytest.approx(np.mean(values))
        assert cell.ours.deviation == pytest.approx(np.std(values, ddof=1))


def test_an_error_in_print_is_held_against_one_minus_the_accuracy(sweep: Results) -> None:
    cells = [cell for cell in table_of("mukhoti-4", sweep).cells if cell.ours is not None]
    text = format_paper_table(table_of("mukhoti-4", sweep), "markdown")
    assert cells
    for cell in cells:
        rows = sweep.rows(f"SELECT accuracy FROM final WHERE split = 'test' AND trial = '{cell.trial}'")
        values = [100 * (1 - row["accuracy"]) for row in rows]
        assert f"{spread_text(np.mean(values), np.std(values, ddof=1))} (3)" in text


def test_other_data_and_rehearsals_fill_nothing(sweep: Results, tmp_path: Path) -> None:
    table = table_of("mukhoti-1", sweep)
    assert table.filled and all(c.published.dataset == "cifar10" for c in table.cells if c.ours)
    others = table_of("mukhoti-1", edited(sweep, tmp_path, dataset={"name": "digits"}))
    assert others.filled == 0 and not others.reasons
    rehearsal = edited(sweep, tmp_path, dataset={"name": "cifar10"}, rehearsed=["digits for cifar10"])
    rehearsed = table_of("mukhoti-1", rehearsal)
    assert (rehearsed.filled, list(rehearsed.rehearsals)) == (0, ["cifar"])
    assert "rehearsals left out: cifar" in format_paper_table(rehearsed, "markdown")


def test_post_hoc_options_must_be_those_in_print(sweep: Results, tmp_path: Path) -> None:
    def filled(method: dict[str, object]) -> int:
        changed = edited(sweep, tmp_path, evaluation={"bins": 15, "posthoc": [method]})
        cells = table_of("mukhoti-1", changed).cells
        return sum(cell.ours is not None for cell in cells if cell.published.posthoc)

    assert filled({"name": "temperature"}) == 0
    assert filled({"name": "temperature", "objective": "ece", "grid": "properness"}) == 0
    printed = {"name": "temperature", "objective": "ece", "grid": "mukhoti"}
    assert filled({**printed, "fitted_on": "train"}) == 0
    assert filled(printed) == filled({**printed, "gamma": 3.0, "apply_focal_map": False}) == 4 * 5 * 2


def test_of_two_methods_with_labels_each_fills_its_own_column(tmp_path: Path) -> None:
    sweep = ideal_sweep(tmp_path, "properness_table_1_tiny_imagenet")
    for cell in table_of("properness-1", sweep).cells:
        number = cell.published
        if cell.ours and number.posthoc and number.metric in ("nll", "temperature"):
            label = f"{number.posthoc}_nll" if number.options["posthoc.objective"].startswith("nll") else number.posthoc
            column = f"posthoc_{label}_{number.metric}"
            rows = sweep.rows(f"SELECT {column} AS v FROM final WHERE split = 'test' AND trial = '{cell.trial}'")
            assert cell.ours.mean == pytest.approx(np.mean([row["v"] for row in rows]))


@pytest.mark.parametrize("name", [*published_tables()])
def test_every_published_table_can_be_shown_without_a_sweep_and_no_two_numbers_share_a_cell(name: str) -> None:
    table, numbers = table_of(name), read_published(name)
    rows = list(csv.DictReader(io.StringIO(format_paper_table(table, "csv"))))
    assert [row["printed"] for row in rows] == [number.printed for number in numbers]
    trained = [row for row in rows if row["sweep"] != FORMULA]
    assert all(row["ours"] == "" and row["n"] == "0" and row["recipe"] for row in trained)
    text = format_paper_table(table, "markdown")
    filled, source = (len(numbers), FORMULA) if name in COMPUTED else (0, "no sweep")
    assert f"{filled} of {len(numbers)} cells filled from {source}" in text
    shown = Counter(cell.strip() for line in text.splitlines() for cell in line.strip("|").split("|"))
    for printed, count in Counter(number.printed for number in numbers).items():
        assert shown[printed] >= count, printed


def test_figures_of_the_focal_map_alone_are_computed() -> None:
    """Within a few per cent of what is printed, but where a number is marked doubtful."""
    for name in sorted(COMPUTED):
        for cell in table_of(name).cells:
            assert cell.ours is not None and np.isfinite(cell.ours.mean)
            if not cell.published.is_doubtful and cell.published.metric != "max_error":
                assert cell.ours.mean == pytest.approx(cell.published.value, rel=0.05), cell.published


def test_an_empty_cell_says_how_the_sweep_departs(tmp_path: Path) -> None:
    short = ideal_sweep(tmp_path, SPACE, load_spec(packaged_files()[SPACE], ["scheduler.max_epochs=300"]), "short")
    table = table_of("mukhoti-1", short)
    rows = list(csv.DictReader(io.StringIO(format_paper_table(table, "csv"))))
    assert {row["reason"] for row in rows} == {"", "short departs from the recipe (epochs 300 for 350)"}
