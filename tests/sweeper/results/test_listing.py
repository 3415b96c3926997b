"""Configurations as a table that fits: columns, order, widths, digits."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard, searched
from sweeper.results.listing import TOP, TrialsTable, best_trials, cell, listed, usual_headings
from tests.sweeper.held import held


def printed(table: TrialsTable, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_best_ten_fit_a_hundred_columns_with_the_summarys_columns(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    board = leaderboard(results)
    lines = printed(listed(results)).splitlines()
    assert len(lines) == 1 + TOP and all(len(line) <= 100 for line in lines)
    assert [line.split()[0] for line in lines[1:]] == [row["trial"] for row in board.rows[:TOP]]
    for heading in ("validation NLL", "test accuracy %", "test ECE", "status", "configuration"):
        assert heading in lines[0]
    assert "ECE after T" in printed(listed(results), 140) and "ECE after T" not in lines[0]
    everything = listed(results, everything=True)
    assert len(everything.rows) == len(board.rows)


@pytest.mark.parametrize("width", [100, 80, 64])
def test_numbers_and_headings_are_never_cut(quickstart_folder: Path, width: int) -> None:
    board = leaderboard(held(quickstart_folder))
    table = TrialsTable(board, board.rows[:20], usual_headings(board))
    text = printed(table, width)
    assert all(len(line) <= width for line in text.splitlines())
    for heading in usual_headings(board)[:3]:
        assert heading.words in text
        for row in board.rows[:20]:
            assert cell(board, row, heading) in text


def test_columns_are_chosen_by_name_and_rows_sorted_by_one(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    board = leaderboard(results)
    table = listed(results, ["test_nll,loss_gamma", "optimizer_lr"], "-test_nll", everything=True)
    assert [heading.words for heading in table.headings] == ["test NLL", "γ", "lr"]
    values = [row["test_nll"] for row in table.rows]
    assert values == sorted(values, reverse=True)
    gammas = [row["config_loss_gamma"] for row in listed(results, sort="loss_gamma", everything=True).rows]
    known = [value for value in gammas if value is not None]
    assert known == sorted(known) and gammas[len(known) :] == [None] * (len(gammas) - len(known)) and known
    (heading,) = listed(results, ["optimizer_lr"]).headings
    assert {len(cell(board, row, heading).lstrip("0.").replace(".", "")) for row in board.rows} <= {1, 2, 3, 4}


def test_as_data_every_row_is_there_unrounded(quickstart_folder: Path, tmp_path: Path) -> None:
    results = held(quickstart_folder)
    board = leaderboard(results)
    table = best_trials(results)
    assert table["trial"].to_pylist() == [row["trial"] for row in board.rows]
    assert {"judged", "judged_sd", "config_loss_gamma", "test_ece"} <= set(table.column_names)
    chosen = best_trials(results, ["test_nll"], "-test_nll")
    assert chosen.column_names == ["trial", "test_nll"]
    assert chosen["test_nll"].to_pylist() == sorted((row["test_nll"] for row in board.rows), reverse=True)
    (tmp_path / "sweep.yaml").write_text("objective: {metric: val_nll, mode: min}")
    assert best_trials(Results(tmp_path)).num_rows == 0


def test_what_a_search_space_draws_is_a_column_however_few_were_drawn() -> None:
    space = {
        "loss": {"one_of": [{"name": "cross_entropy"}, {"name": "focal", "gamma": {"uniform": [0.5, 10]}}]},
        "architecture": {"choice": ["mlp", "resnet8"]},
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "momentum": 0.9, "clip": {"choice": [1]}},
    }
    columns = ("config_loss_gamma", "config_architecture", "config_optimizer_lr")
    assert {*searched(space)} == {*columns, *(f"{name}_name" for name in columns)}
