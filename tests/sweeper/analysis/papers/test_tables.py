"""A paper's table filled in from sweeps: the right rows, the right selection, nothing from rehearsals."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
import yaml

from search_spaces.published_numbers import published_tables, read_published
from sweeper.analysis.papers.table_formats import format_paper_table
from sweeper.analysis.papers.tables import paper_table
from sweeper.analysis.statistics.basics import spread_text
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from tests.sweeper.synthetic_sweep import write_sweep


def edit_specification(folder: Path, **changes: object) -> None:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))


@pytest.fixture()
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """A grid over γ on what claims to be mukhoti's ResNet-50 on CIFAR-10, with two architectures."""
    from tests.sweeper import synthetic_sweep

    original = synthetic_sweep.gamma_configuration

    def configuration(index: int) -> dict:
        found = original(index)
        found["architecture"]["name"] = {"mlp": "resnet50", "resnet8": "mlp"}[found["architecture"]["name"]]
        return found

    monkeypatch.setattr(synthetic_sweep, "gamma_configuration", configuration)
    monkeypatch.setattr(synthetic_sweep, "trial_quality", _quality(synthetic_sweep.trial_quality))
    folder = write_sweep(tmp_path / "cifar", configurations=18, replicates=3, space="gamma", failures=0, samples=60)
    edit_specification(folder, dataset={"name": "cifar10"}, evaluation={"posthoc": [{"name": "temperature"}]})
    return Results(folder)


def _quality(original):
    def quality(rng, configuration):
        names = {"resnet50": "mlp", "mlp": "resnet8"}
        renamed = configuration | {"architecture": {"name": names[configuration["architecture"]["name"]]}}
        return original(rng, renamed)

    return quality


def test_cells_hold_the_replicates_of_the_right_configuration(sweep: Results) -> None:
    filled = {
        (c.published.loss, c.published.options.get("gamma"), c.published.metric): c
        for name in ("mukhoti-1", "mukhoti-5")
        for c in paper_table(name, [sweep]).cells
        if c.ours is not None and not c.published.posthoc
    }
    assert {("cross_entropy", None, "ece"), ("focal", "3", "ece")} <= set(filled)
    for (loss, gamma, _), cell in filled.items():
        where = f"config_loss_gamma = {gamma}" if gamma else "config_loss_gamma IS NULL"
        rows = sweep.rows(
            f"SELECT ece FROM final WHERE split = 'test' AND status = 'completed' AND config_loss_name = '{loss}' "
            f"AND config_architecture_name = 'resnet50' AND {where}"
        )
        values = [row["ece"] for row in rows]
        assert cell.ours is not None and cell.ours.n == len(values) == 3
        assert cell.ours.mean == pytest.approx(np.mean(values))
        assert cell.ours.deviation == pytest.approx(np.std(values, ddof=1))


def test_an_error_in_print_is_held_against_one_minus_the_accuracy(sweep: Results) -> None:
    cells = [cell for cell in paper_table("mukhoti-4", [sweep]).cells if cell.ours is not None]
    text = format_paper_table(paper_table("mukhoti-4", [sweep]), "markdown")
    assert cells
    for cell in cells:
        rows = sweep.rows(f"SELECT accuracy FROM final WHERE split = 'test' AND trial = '{cell.trial}'")
        values = [100 * (1 - row["accuracy"]) for row in rows]
        assert f"{spread_text(np.mean(values), np.std(values, ddof=1))} (3)" in text


def test_other_data_other_networks_and_rehearsals_fill_nothing(sweep: Results) -> None:
    table = paper_table("mukhoti-1", [sweep])
    assert all(
        (c.published.dataset, c.published.architecture) == ("cifar10", "resnet50") for c in table.cells if c.ours
    )
    edit_specification(sweep.folder, dataset={"name": "digits"})
    assert paper_table("mukhoti-1", [Results(sweep.folder)]).filled == 0
    edit_specification(sweep.folder, dataset={"name": "cifar10"}, rehearsed=["digits stand in for cifar10"])
    rehearsed = paper_table("mukhoti-1", [Results(sweep.folder)])
    assert (rehearsed.filled, list(rehearsed.rehearsals)) == (0, ["cifar"])
    assert "rehearsals left out: cifar" in format_paper_table(rehearsed, "markdown")


def test_post_hoc_options_must_be_those_in_print(sweep: Results) -> None:
    def filled() -> int:
        cells = paper_table("mukhoti-1", [Results(sweep.folder)]).cells
        return sum(cell.ours is not None for cell in cells if cell.published.posthoc)

    edit_specification(sweep.folder, evaluation={"posthoc": [{"name": "temperature"}]})
    assert filled() == 0
    printed = {"name": "temperature", "objective": "ece", "grid": "mukhoti"}
    edit_specification(sweep.folder, evaluation={"posthoc": [printed]})
    assert filled() > 0


@pytest.mark.parametrize("name", [*published_tables()])
@pytest.mark.parametrize("form", ["markdown", "latex", "csv"])
def test_every_published_table_can_be_shown_without_a_sweep(name: str, form: str) -> None:
    text = format_paper_table(paper_table(name, []), form)
    numbers = read_published(name)
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["printed"] for row in rows] == [number.printed for number in numbers]
        assert all(row["ours"] == "" and row["n"] == "0" for row in rows)
    elif form == "markdown":
        assert f"0 of {len(numbers)} cells filled from no sweep" in text


@pytest.mark.parametrize("name", [*published_tables()])
def test_two_numbers_never_share_a_cell(name: str) -> None:
    text = format_paper_table(paper_table(name, []), "markdown")
    shown = [cell.strip() for line in text.splitlines() for cell in line.strip("|").split("|")]
    numbers = [number.printed for number in read_published(name)]
    for printed in set(numbers):
        assert shown.count(printed) >= numbers.count(printed), printed


def test_faults_are_named() -> None:
    with pytest.raises(SweeperError, match="no published table 'mukhoti-99'"):
        paper_table("mukhoti-99", [])
    with pytest.raises(SweeperError, match="unknown format"):
        format_paper_table(paper_table("mukhoti-1", []), "html")
