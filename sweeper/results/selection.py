"""What a sweep's best configuration is worth: who may be as good, and where its true value lies.

Reads tables; the statistics are `sweeper.core.statistics.best_set`.
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
    """Return the trials of the configurations that may be the best, best first, and what is known of the winner.

    Those that finished are compared, and of these only what keeps the constraints. None where there are fewer than two,
    or no spread: one replicate each, or an objective of which replicates' values are not in `evaluations`.
    """
    measured = _values(results, board)
    if len(measured) < 2:
        return None
    found = best_set(
        list(measured.values()), board.objective.mode, entered=sum(row["status"] != FAILED for row in board.rows)
    )
    return None if found is None else ([list(measured)[place] for place in found.members], found)


def _values(results: Results, board: Leaderboard) -> dict[str, dict[int, float]]:
    """Return seed → value of the finished trials that keep the constraints; none where replicates are not stored."""
    goal = board.objective
    if goal.split not in ("val", "test") or goal.column not in results.columns("evaluations"):
        return {}
    rows, values = by_trial(results.rows(replicates_sql(goal))), dict[str, dict[int, float]]()
    for trial in _kept(board):
        if trial in rows:
            values[trial] = {int_of(row, "seed"): float_of(row, "value") for row in rows[trial]}
    return values


def _kept(board: Leaderboard) -> list[str]:
    """Return the finished trials that keep the constraints, best first."""
    return [text_of(row, "trial") for row in board.finished if not board.breaks_constraint(row)]


def replicates_sql(goal: Objective) -> str:
    """Return the query of every finished replicate's value of an objective; of a sweep with fresh seeds, theirs."""
    return (
        f"SELECT trial, coalesce(seed, replicate) AS seed, {goal.column} AS value FROM final\n"
        f"WHERE split = '{goal.split}' AND status = '{FINISHED}' AND isfinite({goal.column})\n"
        "QUALIFY stage = 'final' OR NOT bool_or(stage = 'final') OVER () ORDER BY trial, replicate"
    )


def winners_interval(found: BestSet) -> str:
    """Return e.g. `Allowing for having picked the best of 48: 0.047 (95 % 0.031 … 0.086)`.

    Where two or three seeds leave that wider than a factor of ten, it says that, and what would measure it.
    """
    picked = f"Allowing for having picked the best of {found.entered:,}"
    if not found.is_bounded:
        few = plural(found.replicates, "seed")
        return f"{picked}, {few} are too few to say its true value (fresh seeds measure it)"
    return f"{picked}: {interval_text(found)}"


def interval_text(found: BestSet) -> str:
    """Return the winner's value with its interval, e.g. `0.047 (95 % 0.031 … 0.086)`."""
    low, high = found.interval
    return f"{found.value:.3g} (95 % {low:.2g} … {high:.2g})"
