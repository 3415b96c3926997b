"""The headline names over- and underconfidence beside ECE where a sweep measured them, and nothing more elsewhere."""

from __future__ import annotations

from dataclasses import replace

from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import headline
from tests.sweeper.held import held


def test_over_and_underconfidence_stand_beside_ece_where_they_were_measured(losses_folder):
    board = leaderboard(held(losses_folder))
    assert "confidence" not in headline(board)
    first = {**board.best, "test_overconfidence": 0.0213, "test_underconfidence": 0.0}
    assert headline(replace(board, rows=[first])).endswith("overconfidence 0.0213, underconfidence 0.")
