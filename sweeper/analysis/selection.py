"""What a sweep's best configuration is worth: who cannot be told apart from it, and its value without its luck.

Reads tables; the statistics are `sweeper.analysis.statistics.best_set`.
"""

from __future__ import annotations

from sweeper.analysis.statistics.best_set import BestSet, best_set
from sweeper.core.objective import Objective
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard
from sweeper.results.pareto import against_constraints
from sweeper.text.cells import float_of, int_of, text_of

NAMED = 4
"""Trials of the set that a sentence names; of more it gives the number."""


def selected(results: Results, board: Leaderboard) -> tuple[list[str], BestSet] | None:
    """Return the trials of the configurations that may be the best, best first, and what is known of the winner.

    Those that finished are compared, and of these only what keeps the constraints. None where there are fewer than two,
    or no spread: one replicate each, or an objective of which replicates' values are not in `evaluations`.
    """
    if not replicates_are_stored(results, board.objective):
        return None
    against = against_constraints(results)
    values: dict[str, dict[int, float]] = {
        text_of(row, "trial"): {} for row in board.finished if row["trial"] not in against
    }
    for row in results.rows(replicates_sql(board.objective)):
        if (trial := text_of(row, "trial")) in values:
            values[trial][int_of(row, "seed")] = float_of(row, "value")
    measured = {trial: each for trial, each in values.items() if each}
    found = best_set(list(measured.values()), board.objective.mode) if len(measured) > 1 else None
    return None if found is None else ([list(measured)[place] for place in found.members], found)


def replicates_are_stored(results: Results, goal: Objective) -> bool:
    """Return whether every replicate's value of an objective is in `evaluations`."""
    return goal.split in ("val", "test") and goal.column in results.columns("evaluations")


def replicates_sql(goal: Objective) -> str:
    """Return the query of every finished replicate's value of an objective."""
    return (
        f"SELECT trial, seed, {goal.column} AS value FROM final\n"
        f"WHERE split = '{goal.split}' AND status = '{FINISHED}' AND isfinite({goal.column}) ORDER BY trial, replicate"
    )


def correction(found: BestSet) -> str:
    """Return the winner's value corrected for its having been chosen: `0.051 corrected for the selection (95 % …)`."""
    low, high = found.interval
    corrected = "" if found.corrected is None else f"{found.corrected:.3g} "
    return f"{corrected}corrected for the selection (95 % {low:.3g} … {high:.3g})"


def best_set_line(results: Results, board: Leaderboard) -> str:
    """Return how many configurations may be the best, and the winner's corrected value; empty where none can be said.

    E.g. `4 of 16 configurations cannot be distinguished by validation NLL (95 %): c00003, …; the best one's 0.045 …`.
    """
    answer = selected(results, board)
    if answer is None:
        return ""
    trials, found = answer
    what, paired = board.objective.label, ", paired by seed" if found.paired else ""
    if len(trials) == 1:
        who = f"{trials[0]} is the best of {found.configurations} configurations by {what} (95 %{paired})"
    else:
        named = ", ".join(trials[:NAMED]) + (", …" if len(trials) > NAMED else "")
        who = f"{len(trials)} of {found.configurations} configurations cannot be distinguished by {what} (95 %{paired})"
        who += f": {named}"
    return f"{who}; the best one's {found.value:.3g} is {correction(found)}"
