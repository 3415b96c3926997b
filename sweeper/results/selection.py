"""The configurations that may be the best, and an interval for the winner's true value.

This module reads tables; the statistics are in `sweeper.core.statistics.best_set`.
"""

from __future__ import annotations

from sweeper.core.cells import by_trial, float_of, int_of, text_of
from sweeper.core.labels import plural
from sweeper.core.statistics.best_set import BestSet, best_set
from sweeper.journal.best import Objective
from sweeper.journal.state import FAILED
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard


def selected(results: Results, board: Leaderboard) -> tuple[list[str], BestSet] | None:
    """Return the trials that may be the best, best first, with the statistics of the winner.

    Only finished configurations that meet the constraints are compared. None if there are fewer than two, or if no
    spread is known. The spread is unknown if each has one replicate, or if `evaluations` does not contain the
    objective.
    """
    measured = _values(results, board)
    if len(measured) < 2:
        return None
    # `entered` includes stopped configurations, because the winner was selected among all that were evaluated.
    best = best_set(
        list(measured.values()), board.objective.mode, entered=sum(row["status"] != FAILED for row in board.rows)
    )
    return None if best is None else ([list(measured)[place] for place in best.members], best)


def _values(results: Results, board: Leaderboard) -> dict[str, dict[int, float]]:
    """Return trial → seed → value of the finished trials that meet the constraints; empty if not stored."""
    goal = board.objective
    if goal.split not in ("val", "test") or goal.column not in results.columns("evaluations"):
        return {}
    rows, values = by_trial(results.rows(replicates_sql(goal))), dict[str, dict[int, float]]()
    for trial in _kept(board):
        if trial in rows:
            values[trial] = {int_of(row, "seed"): float_of(row, "value") for row in rows[trial]}
    return values


def _kept(board: Leaderboard) -> list[str]:
    """Return the finished trials that meet the constraints, best first."""
    return [text_of(row, "trial") for row in board.finished if not board.breaks_constraint(row)]


def replicates_sql(goal: Objective) -> str:
    """Return the query of the objective of every finished replicate; if there are fresh seeds, only of these."""
    # Fresh seeds selected nothing, so their values are unbiased. Mixing them with other seeds would bring the bias
    # back.
    return (
        f"SELECT trial, coalesce(seed, replicate) AS seed, {goal.column} AS value FROM final\n"
        f"WHERE split = '{goal.split}' AND status = '{FINISHED}' AND isfinite({goal.column})\n"
        "QUALIFY stage = 'final' OR NOT bool_or(stage = 'final') OVER () ORDER BY trial, replicate"
    )


def winners_interval(best: BestSet) -> str:
    """Return e.g. `Allowing for having picked the best of 48: 0.047 (95 % 0.031 … 0.086)`.

    If there are only two or three seeds and the interval is wider than a factor of ten, the sentence names the remedy
    instead.
    """
    picked = f"Allowing for having picked the best of {best.entered:,}"
    if not best.is_bounded:
        few = plural(best.replicates, "seed")
        return f"{picked}, {few} are too few to say its true value (fresh seeds measure it)"
    return f"{picked}: {interval_text(best)}"


def interval_text(best: BestSet) -> str:
    """Return the winner's value with its interval, e.g. `0.047 (95 % 0.031 … 0.086)`."""
    low, high = best.interval
    return f"{best.value:.3g} (95 % {low:.2g} … {high:.2g})"
