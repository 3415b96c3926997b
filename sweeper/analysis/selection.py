"""What a sweep's best configuration is worth: who may be as good, and where its true value lies.

Reads tables; the statistics are `sweeper.analysis.statistics.best_set`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.analysis.statistics.best_set import SURE, BestSet, Comparisons, best_set, foretell, level_of, next_round
from sweeper.analysis.statistics.spreads import LEVEL, Spreads, spreads
from sweeper.core.ids import configuration_index, trial_name
from sweeper.journal.best import Objective
from sweeper.journal.state import FAILED
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Leaderboard
from sweeper.text.cells import by_trial, float_of, int_of, text_of
from sweeper.text.labels import plural

#: Trials of the set that a sentence names; of more it gives the number.
NAMED = 4


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


def _with_rounds(results: Results, board: Leaderboard) -> dict[str, dict[int, float]]:
    """Return seed → value of the finished trials, by the sweep's own seeds and those of all rounds."""
    values = _values(results, board)
    for confirmation in confirmations_of(results):
        for trial, seed, value in _fresh(confirmation, board):
            values.setdefault(trial, {})[seed] = value
    return values


def _fresh(confirmation: Results, board: Leaderboard) -> list[tuple[str, int, float]]:
    """Return trial, seed and value of a round, by the trials' names in the sweep that it confirms."""
    named = _named(confirmation)
    return [
        (named[configuration_index(text_of(row, "trial"))], int_of(row, "seed"), float_of(row, "value"))
        for row in confirmation.rows(replicates_sql(board.objective))
    ]


def _named(confirmation: Results) -> list[str]:
    """Return the trials that a round trains again, by their names in the sweep that it confirms."""
    return [trial_name(each) for each in confirmation.specification["confirms"]["configurations"]]


def next_seed(results: Results, board: Leaderboard, instead_of: int) -> list[str]:
    """Return the trials that get one more seed, by all seeds so far; none where all is decided or spent."""
    values = _with_rounds(results, board)
    picked = next_round([*values.values()], board.objective.mode, instead_of, len(confirmations_of(results)))
    return [[*values][at] for at in picked]


def confirmed_name(name: str, number: int = 1) -> str:
    """Return the name of the sweep that trains another's best configurations again on a round of fresh seeds."""
    return f"{name}-confirmed" + (f"-{number}" if number > 1 else "")


def candidates(results: Results, board: Leaderboard) -> list[str]:
    """Return the trials that may be the best, best first; of one replicate each, which cannot say, the first few."""
    answer = selected(results, board)
    return _kept(board)[:NAMED] if answer is None else answer[0]


def confirmations_of(results: Results) -> list[Results]:
    """Return the finished sweeps that confirm this one, one a round of seeds."""
    found: list[Results] = []
    while (following := confirmation_of(results, len(found) + 1)) is not None:
        found.append(following)
    return found


def confirmation_of(results: Results, number: int = 1) -> Results | None:
    """Return the finished sweep of a round of seeds that confirms this one; None where there is none beside it."""
    found = Results(results.folder.parent / confirmed_name(results.name, number))
    if (found.specification.get("confirms") or {}).get("sweep") != results.name:
        return None
    ended = found.rows("SELECT count(*) FILTER (status NOT IN ('completed', 'failed')) AS left FROM trials")
    return found if ended and int_of(ended[0], "left") == 0 else None


@dataclass(frozen=True)
class Look:
    """What fresh seeds say after a round: the trials that had seeds in it, and their spreads on all fresh seeds."""

    trials: list[str]
    spread: Spreads
    level: float

    @property
    def left(self) -> list[str]:
        """The trials that may be the best."""
        inside = Comparisons(self.spread, self.level).may_be_best
        return [trial for trial, may_be in zip(self.trials, inside, strict=True) if may_be]


def _looks(results: Results, board: Leaderboard) -> list[Look]:
    """Return the looks at rounds of fresh seeds; those without a spread are left out."""
    values: dict[str, dict[int, float]] = {}
    rounds, looks = confirmations_of(results), list[Look]()
    several = len(rounds) > 1 or isinstance(results.specification.get("confirm"), dict)
    for number, confirmation in enumerate(rounds, 1):
        for trial, seed, value in _fresh(confirmation, board):
            values.setdefault(trial, {})[seed] = value
        trials = [trial for trial in _named(confirmation) if trial in values]
        found = spreads([values[trial] for trial in trials], board.objective.mode)
        if found is not None:
            looks.append(Look(trials, found, level_of(number) if several else LEVEL))
    return looks


def left_after(results: Results, board: Leaderboard) -> list[str]:
    """Return the trials that may be the best after all rounds of fresh seeds: all of them where these say nothing."""
    looks, rounds = _looks(results, board), confirmations_of(results)
    return looks[-1].left if looks else _named(rounds[-1])


def confirmed_value(results: Results, board: Leaderboard) -> str:
    """Return the best configuration's value on fresh seeds, which did not pick it; empty where it was not confirmed.

    E.g. `0.052 (95 % 0.041 … 0.066, 3 fresh seeds)`.
    """
    best = None if board.best is None else text_of(board.best, "trial")
    looks = [look for look in _looks(results, board) if best in look.trials]
    if best is None or not looks:
        return ""
    spread, at = looks[-1].spread, looks[-1].trials.index(best)
    low, high = spread.interval(at)
    seeds = plural(int(spread.sizes[at]), "fresh seed")
    return f"{spread.value(spread.scores[at]):.3g} (95 % {low:.2g} … {high:.2g}, {seeds})"


def confirmed_line(results: Results, board: Leaderboard) -> str:
    """Return which of the confirmed configurations may be the best, by fresh seeds alone.

    E.g. `Confirmed on 3 fresh seeds each by quickstart-confirmed: of 3 configurations, c00031, c00011 may be the best
    by validation NLL (90 %).`
    """
    confirm = results.specification.get("confirm")
    if isinstance(confirm, dict) and (seeds := confirm.get("instead_of")):
        return _foretold_line(_with_rounds(results, board), board, seeds)
    looks = _looks(results, board)
    if not looks:
        return ""
    total, last, rounds = len(looks[0].trials), looks[-1], confirmations_of(results)
    who = f"of {total} configurations, {_may_be_best(last.left, total)}" if total > 1 else last.trials[0]
    seeds = plural(int(last.spread.sizes.min()), "fresh seed")
    each = f"{seeds} each" if len(rounds) == 1 else f"up to {seeds} each, in {len(rounds)} rounds,"
    return f"Confirmed on {each} by {rounds[0].name}: {who} by {board.objective.label} ({SURE})."


def _foretold_line(values: dict[str, dict[int, float]], board: Leaderboard, seeds: int) -> str:
    """Return what `seeds` seeds for all would leave, e.g. `By 118 trainings instead of 240 (5 seeds each): …`."""
    spent, found = sum(map(len, values.values())), foretell([*values.values()], board.objective.mode, seeds)
    if found is None:
        return ""
    trials = [[*values][at] for at in found.members]
    who = f"of {len(values)} configurations, {_may_be_best(trials, len(values))}"
    return (
        f"By {spent} trainings instead of {seeds * len(values)} ({seeds} seeds each): {who} by {board.objective.label}."
    )


def _may_be_best(trials: list[str], total: int) -> str:
    if len(trials) == total:
        return "any may be the best"
    if len(trials) == 1:
        return f"{trials[0]} is the best"
    return f"{', '.join(trials[:NAMED])}{', …' if len(trials) > NAMED else ''} may be the best"


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
    if confirmation_of(results) is not None:
        return confirmed_line(results, board)
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
