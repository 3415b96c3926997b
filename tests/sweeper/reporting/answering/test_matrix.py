"""The matrix of losses and networks, recomputed from the Parquet files with pandas alone."""

from pathlib import Path

import pandas as pd
import pytest

from sweeper.reporting.answering.matrix import Matrix, matrix
from sweeper.results.leaderboard import leaderboard, selected
from tests.sweeper.held import held
from tests.sweeper.tables_by_pandas import last, means


def matrix_of(folder: Path) -> Matrix:
    results = held(folder)
    found = matrix(results, leaderboard(results))
    assert found is not None
    return found


def best_by_cell(folder: Path) -> pd.DataFrame:
    """The best configuration of each loss and network: finished ones first, then by epoch and validation NLL."""
    rows = means(folder, "val", ["nll"])
    rows["epoch"] = last(folder, "val").groupby("trial")["epoch"].max()
    rows = rows[rows["status"] != "failed"].assign(late=rows["status"] != "completed")
    keys = ["config_loss_name", "config_architecture_name"]
    return rows.reset_index().sort_values(["late", "epoch", "nll"], ascending=[True, False, True]).groupby(keys).first()


def test_each_cell_begins_with_the_best_configuration_of_its_loss_and_network(quickstart_folder: Path) -> None:
    found, expected = matrix_of(quickstart_folder), best_by_cell(quickstart_folder)
    assert {key[1:] for key in found.cells} == set(expected.index)
    for key, rows in found.cells.items():
        value, row = found.decides.last(rows[0]), expected.loc[key[1:]]
        assert value is not None and rows[0]["trial"] == row["trial"] and value.mean == pytest.approx(row["nll"])


def test_what_was_stopped_is_neither_worse_nor_as_good(quickstart_folder: Path) -> None:
    found = matrix_of(quickstart_folder)
    best = found.best("")
    stopped = [row for rows in found.cells.values() for row in rows if row["status"] == "early_stopped"]
    assert best is not None and stopped and {found.decides.worse(best, row) for row in stopped} == {None}


@pytest.mark.parametrize("folder", ["losses_folder", "quickstart_folder", "gamma_folder"])
def test_marks_are_those_of_the_winners_rivals(folder: str, request: pytest.FixtureRequest) -> None:
    results = held(request.getfixturevalue(folder))
    board = leaderboard(results)
    found, answer = matrix(results, board), selected(results, board)
    assert found is not None and answer is not None
    finished = {row["trial"]: row for rows in found.cells.values() for row in rows if row["status"] == "completed"}
    best = found.best("")
    assert best is not None and answer.alike[0] == best["trial"]
    assert {name for name, row in finished.items() if found.decides.worse(best, row) is False} == set(answer.alike)
