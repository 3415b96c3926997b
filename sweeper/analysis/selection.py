"""What a sweep's best configuration is worth: who may be as good, and where its true value lies.

Reads tables; the statistics are `sweeper.analysis.statistics.best_set`.
"""

from __future__ import annotations

from sweeper.analysis.statistics.best_set import SURE, BestSet, Comparisons, best_set
from sweeper.analysis.statistics.spreads import Spreads, spreads
from sweeper.core.ids import trial_name
from sweeper.core.objective import Objective
from sweeper.journal.state import FAILED
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard, against_constraints
from sweeper.text.cells import float_of, int_of, text_of
from sweeper.text.labels import plural

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
    if len(measured) < 2:
        return None
    networks = {text_of(row, "trial"): str(row["architecture"]) for row in board.finished}
    found = best_set(
        list(measured.values()),
        board.objective.mode,
        groups=[networks[trial] for trial in measured],
        entered=sum(row["status"] != FAILED for row in board.rows),
    )
    return None if found is None else ([list(measured)[place] for place in found.members], found)


def confirmed_name(name: str) -> str:
    """Return the name of the sweep that trains another's best configurations again on fresh seeds."""
    return f"{name}-confirmed"


def candidates(results: Results, board: Leaderboard) -> list[str]:
    """Return the trials that may be the best, best first; of one replicate each, which cannot say, the first few."""
    answer = selected(results, board)
    if answer is not None:
        return answer[0]
    against = against_constraints(results)
    return [text_of(row, "trial") for row in board.finished if row["trial"] not in against][:NAMED]


def confirmation_of(results: Results) -> Results | None:
    """Return the finished sweep that confirms this one; None where there is none beside it."""
    found = Results(results.folder.parent / confirmed_name(results.name))
    if (found.specification.get("confirms") or {}).get("sweep") != results.name:
        return None
    ended = found.rows("SELECT count(*) FILTER (status NOT IN ('completed', 'failed')) AS left FROM trials")
    return found if ended and int_of(ended[0], "left") == 0 else None


def _confirmed(results: Results, board: Leaderboard, confirmation: Results) -> tuple[list[str], Spreads] | None:
    """Return the confirmed trials, as the sweep names them, and their spreads on fresh seeds."""
    numbers = confirmation.specification["confirms"]["configurations"]
    values: dict[str, dict[int, float]] = {trial_name(number): {} for number in numbers}
    for row in confirmation.rows(replicates_sql(board.objective)):
        place = int(text_of(row, "trial").removeprefix("c"))
        values[trial_name(numbers[place])][int_of(row, "seed")] = float_of(row, "value")
    values = {trial: each for trial, each in values.items() if each}
    networks = {text_of(row, "trial"): str(row["architecture"]) for row in board.rows}
    groups = [networks.get(trial, "") for trial in values]
    found = spreads(list(values.values()), board.objective.mode, groups=groups)
    return None if found is None else (list(values), found)


def confirmed_value(results: Results, board: Leaderboard) -> str:
    """Return the best configuration's value on fresh seeds, which did not pick it; empty where it was not confirmed.

    E.g. `0.052 (95 % 0.041 … 0.066, 3 fresh seeds)`.
    """
    confirmation = confirmation_of(results)
    found = None if confirmation is None else _confirmed(results, board, confirmation)
    if found is None or board.best is None or board.best["trial"] not in found[0]:
        return ""
    trials, spread = found
    at = trials.index(text_of(board.best, "trial"))
    low, high = spread.interval(at)
    seeds = plural(int(spread.sizes[at]), "fresh seed")
    return f"{spread.value(spread.scores[at]):.3g} (95 % {low:.2g} … {high:.2g}, {seeds})"


def confirmed_line(results: Results, board: Leaderboard, confirmation: Results) -> str:
    """Return which of the confirmed configurations may be the best, by fresh seeds alone.

    E.g. `Confirmed by quickstart-confirmed: of 3 configurations, c00031, c00011 may be the best (90 %).`
    """
    found = _confirmed(results, board, confirmation)
    if found is None:
        return ""
    trials, spread = found
    best = [trial for trial, inside in zip(trials, Comparisons(spread).may_be_best, strict=True) if inside]
    who = f"of {len(trials)} configurations, {_may_be_best(best, len(trials))}" if len(trials) > 1 else trials[0]
    seeds = plural(int(spread.sizes.min()), "fresh seed")
    return f"Confirmed on {seeds} each by {confirmation.name}: {who} by {board.objective.label} ({SURE})."


def _may_be_best(trials: list[str], total: int) -> str:
    if len(trials) == total:
        return "any may be the best"
    if len(trials) == 1:
        return f"{trials[0]} is the best"
    return f"{', '.join(trials[:NAMED])}{', …' if len(trials) > NAMED else ''} may be the best"


def replicates_are_stored(results: Results, goal: Objective) -> bool:
    """Return whether every replicate's value of an objective is in `evaluations`."""
    return goal.split in ("val", "test") and goal.column in results.columns("evaluations")


def replicates_sql(goal: Objective) -> str:
    """Return the query of every finished replicate's value of an objective."""
    return (
        f"SELECT trial, seed, {goal.column} AS value FROM final\n"
        f"WHERE split = '{goal.split}' AND status = '{FINISHED}' AND isfinite({goal.column}) ORDER BY trial, replicate"
    )


def winners_interval(found: BestSet) -> str:
    """Return e.g. `Allowing for having picked the best of 48: 0.047 (95 % 0.031 … 0.086)`.

    Where two or three seeds leave that wider than a factor of ten, it says that, and what would measure it.
    """
    picked = f"Allowing for having picked the best of {found.entered:,}"
    if not found.is_bounded:
        few = plural(found.replicates, "seed")
        return f"{picked}, {few} are too few to say its true value (`confirm: 3` measures it)"
    low, high = found.interval
    return f"{picked}: {found.value:.3g} (95 % {low:.2g} … {high:.2g})"


def best_set_line(results: Results, board: Leaderboard) -> str:
    """Return how many configurations may be the best, and the winner's interval; empty where none can be said.

    Where fresh seeds have confirmed them, what these say instead.

    E.g. `4 of 16 trained to the end may be the best (90 %, 2 seeds each): c00003, …`.
    """
    confirmation = confirmation_of(results)
    if confirmation is not None:
        return confirmed_line(results, board, confirmation)
    answer = selected(results, board)
    if answer is None:
        return ""
    trials, found = answer
    sure = f"({SURE}, {plural(found.replicates, 'seed')} each{', paired' if found.paired else ''})"
    if len(trials) == 1:
        who = f"It is the best of the {found.configurations:,} trained to the end {sure}"
    elif len(trials) == found.configurations:
        who = f"Any of the {found.configurations:,} trained to the end may be the best {sure}"
    else:
        named = ", ".join(trials[:NAMED]) + (f" and {len(trials) - NAMED} more" if len(trials) > NAMED else "")
        who = f"{len(trials)} of {found.configurations:,} trained to the end may be the best {sure}: {named}"
    return f"{who}. {winners_interval(found)}."
