"""What the tables say of a sweep's winner: who may be as good, and what its value is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard, selected
from tests.sweeper.synthetic_sweep import write_sweep


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(
        write_sweep(tmp_path_factory.mktemp("s") / "s", configurations=12, replicates=3, space="gamma", samples=60)
    )


def test_the_winner_is_the_leaderboards_and_its_values_are_those_of_the_tables(sweep: Results) -> None:
    board = leaderboard(sweep)
    answer = selected(sweep, board)
    assert answer is not None
    assert board.best is not None and answer.alike[0] == board.best["trial"]
    assert answer.value.value == pytest.approx(board.best["judged"])
    assert answer.value.low < answer.value.value < answer.value.high and answer.value.seeds == 3
    assert set(answer.alike) <= {row["trial"] for row in board.finished}
    assert answer.entered == sum(row["status"] != "failed" for row in board.rows)


def test_one_replicate_each_says_nothing(tmp_path: Path) -> None:
    results = Results(write_sweep(tmp_path / "one", configurations=8, replicates=1, space="gamma", samples=60))
    assert selected(results, leaderboard(results)) is None
