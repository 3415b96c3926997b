"""The configurations of each loss on each network, and the verdicts on which of them is the best by the objective.

Configurations at the same epoch are compared, all with each other (`sweeper.judging`). The final stage asks the same
question of the same seeds, so its race and the marks cannot disagree. A configuration that was stopped earlier than the
best is not compared: it was behind at its rung, and its final value is unknown.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from sweeper.core.cells import Row, float_or_none, grouped, int_of, text_of
from sweeper.core.ids import configuration_index, is_added
from sweeper.core.labels import Symbols, group, number, short, split
from sweeper.core.statistics.basics import Spread, spread
from sweeper.journal.state import FAILED
from sweeper.judging.judge import judge
from sweeper.judging.outliers import Outliers
from sweeper.judging.question import NOT_COMPARED, WORSE, Data, Question, Verdicts
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Goal, Leaderboard, fresh_replicates
from sweeper.results.verdicts import objective_margin, outlying_seeds
from sweeper.scheduling.contenders import FIRST_SEEDS
from sweeper.space.spec import EACH, WINNER, through_winner
from trainables.registry import Options

#: (The data set's settings in words, empty if they do not vary; loss; network).
Key = tuple[str, str, str]

#: Seed → value.
Replicated = Mapping[int, float]


@dataclass(frozen=True)
class Measured:
    """One column of the tables at every evaluation.

    Attributes:
        goal: the column's metric and its direction.
        values: trial → epoch → the replicates' finite values.
        places: trial → its setting of the data set. Only trials with the same setting are compared.
        left_out: trials that are not compared, because they lack fresh seeds that others have.
        margin: largest difference that counts as none, in the metric's unit.
        first: number of seeds before the first judgement, if the sweep judged after each further one; else 0.
    """

    goal: Goal
    values: Mapping[str, Mapping[int, Replicated]]
    places: Mapping[str, str]
    left_out: Set[str] = frozenset()
    margin: float = 0.0
    first: int = 0
    _judged: dict[tuple[str, int], Verdicts] = field(default_factory=dict, repr=False, compare=False)

    def last(self, row: Row) -> Spread | None:
        """Return a trial's value at its last evaluation; None if it has none."""
        epochs = self.values.get(text_of(row, "trial"), {})
        return spread([*epochs[max(epochs)].values()]) if epochs else None

    def verdicts(self, trial: str) -> Verdicts:
        """Return the verdicts on all trials that are compared at a trial's last evaluation, including itself."""
        place, epoch = self.places[trial], max(self.values[trial])
        if (place, epoch) not in self._judged:
            there = [name for name, epochs in self.values.items() if epoch in epochs and self.places[name] == place]
            names = [name for name in there if name not in self.left_out]
            self._judged[place, epoch] = self.among(names, epoch)
        return self._judged[place, epoch]

    def among(self, trials: Sequence[str], epoch: int, questions: int = 1) -> Verdicts:
        """Return the verdicts on which of these trials is the best at an epoch; several questions share the error."""
        question = Question(
            trials, self.goal.metric, self.goal.mode, margin=self.margin, relative=self.goal.mode == "min",
            first=self.first, among=questions,
        )  # fmt: skip
        return judge(question, Data({name: self.values[name][epoch] for name in trials}))

    def best_of(self, values: Sequence[Spread | None]) -> int | None:
        """Return the index of the best mean; of equal means, the first. None if there is none."""
        means = {at: value.mean for at, value in enumerate(values) if value is not None}
        return (max if self.goal.mode == "max" else min)(means, key=lambda at: means[at], default=None)

    def standing(self, best: Row, other: Row) -> str:
        """Return the code of `other` among the trials that are compared with `best`.

        NOT_COMPARED if the two were last evaluated at different epochs, one was never evaluated, or there is no second
        replicate.
        """
        first, second = (text_of(row, "trial") for row in (best, other))
        epochs = [max(self.values.get(name, {}), default=None) for name in (first, second)]
        # Values at different epochs are not comparable, because one trial has trained longer.
        if None in epochs or epochs[0] != epochs[1]:
            return NOT_COMPARED
        of = self.verdicts(first).of
        return of[second].code if first in of and second in of else NOT_COMPARED

    def worse(self, best: Row, other: Row) -> bool | None:
        """Return whether `other` is worse than another trial that is compared with `best`; None if unknown."""
        return {WORSE: True, NOT_COMPARED: None}.get(self.standing(best, other), False)


@dataclass(frozen=True)
class Matrix:
    """Losses × networks, for each setting of the data set.

    Attributes:
        cells: key → configurations of that loss on that network, best first, without failed ones.
        decides: the objective.
        varying: columns of the varying hyperparameters.
        fresh: trials with seeds of the final stage.
        outliers: trainings that ended far from the others. Their values are left out.
        asked: columns of the hyperparameters for which the final stage trained a line.
        on_each: those of them with a line on each network.
        losses: trial → its loss with all hyperparameters, those that do not vary included.
        at_zero: loss → hyperparameters that, all at 0, make it cross-entropy.
        draws: setting of the data set → loss → number of configurations drawn.
        symbols: columns of hyperparameters with another name than the quantity that they are.
    """

    cells: Mapping[Key, Sequence[Row]]
    decides: Measured
    varying: Sequence[str]
    fresh: Set[str] = frozenset()
    outliers: Outliers = field(default_factory=lambda: Outliers((), 0))
    asked: Sequence[str] = ()
    losses: Mapping[str, Options] = field(default_factory=dict)
    at_zero: Mapping[str, Sequence[str]] = field(default_factory=dict)
    draws: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    symbols: Symbols = field(default_factory=dict)
    on_each: Sequence[str] = ()

    def loss_of(self, key: Key, row: Row) -> Options:
        """Return a configuration's loss with its hyperparameters."""
        return self.losses.get(text_of(row, "trial"), {"name": key[1]})

    @property
    def slices(self) -> list[str]:
        """The data set's settings in words; one empty string if they do not vary."""
        return list(dict.fromkeys(key[0] for key in self.cells))

    def verdicts(self, place: str) -> Verdicts:
        """Return the verdicts on the configurations of a slice that were trained longest."""
        first = next(rows[0] for key, rows in self.cells.items() if key[0] == place)
        return self.decides.verdicts(text_of(first, "trial"))

    def best(self, place: str) -> Row | None:
        """Return the leading configuration of a slice; None without any."""
        rows = [row for key, rows in self.cells.items() if key[0] == place for row in rows]
        leader = self.verdicts(place).leader if rows else None
        return next((row for row in rows if row["trial"] == leader), rows[0] if rows else None)


def matrix(results: Results, board: Leaderboard) -> Matrix | None:
    """Return the configurations by loss and network; None if the objective was never evaluated."""
    goal = board.objective
    if goal.column in results.columns("evaluations"):
        values = evaluated(results, goal.split if goal.split in ("val", "test") else "val", [goal.column])[goal.column]
    else:
        values = by_epoch(results, goal)
    if not values:
        return None
    # Seeds that ended far from the others would spoil every interval from few seeds, so verdicts leave them out.
    far = outlying_seeds(results, board)
    for trial, seed in far.flagged:
        values[trial] = {epoch: {s: v for s, v in of.items() if s != seed} for epoch, of in values[trial].items()}
    fresh = {trial for trial, _ in fresh_replicates(results)} & values.keys()
    asked = asked_columns(results, board)
    decides = measure(goal, values, board, fresh, margin=objective_margin(results), asked=asked)
    # The leaderboard's order uses all seeds. If some seeds do not count, cells are ordered by value again.
    by_value = fresh or (values.keys() if far.flagged else frozenset())
    cells = cells_of(board, decides, by_value)
    at_zero = results.specification.get("cross_entropy_at_zero") or {}
    draws = draws_of(board, asked)
    return Matrix(
        cells, decides, board.varying, fresh, far, asked, losses_of(results), at_zero, draws, board.symbols,
        asked_columns(results, board, [EACH]),
    )  # fmt: skip


def asked_columns(results: Results, board: Leaderboard, through: Sequence[str] = (WINNER, EACH)) -> list[str]:
    """Return the columns of `which` that vary, of lines through the winner or the best of each network."""
    which = through_winner(results.specification.get("which") or {})
    columns = [f"config_{path.replace('.', '_')}" for path, of in which.items() if of in through]
    return [column for column in columns if column in board.varying]


def losses_of(results: Results) -> dict[str, Options]:
    """Return trial → its loss with its hyperparameters, as the space writes them."""
    columns = [name for name in results.columns("trials") if name.startswith("config_loss_")]
    chosen = ", ".join(f"any_value({name}) AS {name}" for name in columns)
    rows = results.rows(f"SELECT trial, {chosen} FROM trials GROUP BY trial") if columns else ()
    return {
        text_of(row, "trial"): {split(name)[1]: row[name] for name in columns if row[name] is not None} for row in rows
    }


def draws_of(board: Leaderboard, asked: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return setting of the data set → loss → number of drawn configurations, without those of lines."""
    drawn = [row for row in board.rows if not is_added(configuration_index(text_of(row, "trial")))]
    by_place = grouped(drawn, lambda row: place_of(board, row, asked))
    return {place: {**Counter(str(row["loss"]) for row in rows)} for place, rows in by_place.items()}


def cells_of(board: Leaderboard, decides: Measured, fresh: Set[str] = frozenset()) -> dict[Key, list[Row]]:
    """Return the configurations of each loss and network, best first.

    Configurations with fresh seeds come first, ordered by these seeds. Of stopped configurations, those that trained
    longest come first, since values at epochs 3 and 9 are not comparable.
    """
    sign = -1 if decides.goal.mode == "max" else 1

    def order(row: Row) -> tuple[bool, int, bool, float]:
        value = decides.last(row) if row["trial"] in fresh else None
        return row["status"] != FINISHED, -int_of(row, "epochs"), value is None, sign * value.mean if value else 0.0

    cells: dict[Key, list[Row]] = {}
    for row in sorted(board.rows, key=order):
        if row["status"] != FAILED and decides.last(row) is not None:
            key = decides.places[text_of(row, "trial")], str(row["loss"] or "all"), str(row["architecture"] or "all")
            cells.setdefault(key, []).append(row)
    # Cells keep the order of their best configurations, but are grouped by the data set's setting.
    order_of = {key: at for at, key in enumerate(cells)}
    return {key: cells[key] for key in sorted(cells, key=lambda key: (key[0], order_of[key]))}


def evaluated(results: Results, split: str, columns: Sequence[str]) -> dict[str, dict[str, dict[int, Replicated]]]:
    """Return column → trial → epoch → values by seed on a split; for a trial with fresh seeds, only of these."""
    if not columns:
        return {}
    rows = results.rows(
        f"SELECT trial, replicate, epoch, seed, {', '.join(columns)} FROM "
        f"(SELECT * FROM evaluations WHERE split = '{split}' "
        "QUALIFY row_number() OVER (PARTITION BY trial, replicate, epoch ORDER BY stage) = 1) "
        f"{_WITH_SEEDS} ORDER BY trial, epoch, replicate"
    )
    fresh = fresh_replicates(results)  # the other seeds selected these trials, and would bias the comparison
    trials = {trial for trial, _ in fresh}
    used = [row for row in rows if row["trial"] not in trials or (row["trial"], row["replicate"]) in fresh]
    return {column: replicated(used, column) for column in columns}


#: Replicates by seed; if a table has no seeds, by replicate number.
_WITH_SEEDS = (
    "JOIN (SELECT DISTINCT trial, replicate, coalesce(seed, replicate) AS seed FROM trials) USING (trial, replicate)"
)


def by_epoch(results: Results, goal: Goal) -> dict[str, dict[int, Replicated]]:
    """Return trial → epoch → values by seed of an objective that is only in `epochs`, such as the training loss."""
    if goal.metric not in results.columns("epochs"):
        return {}
    columns = f"trial, epoch, seed, {goal.metric}"
    rows = results.rows(f"SELECT {columns} FROM epochs {_WITH_SEEDS} ORDER BY trial, epoch, replicate")
    return replicated(rows, goal.metric)


def replicated(rows: Sequence[Row], column: str) -> dict[str, dict[int, Replicated]]:
    """Return trial → epoch → the column's finite values by seed."""
    values: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        value = float_or_none(row, column)
        if value is not None and math.isfinite(value):
            values[text_of(row, "trial")][int_of(row, "epoch")][int_of(row, "seed")] = value
    return {trial: {**epochs} for trial, epochs in values.items()}


def measure(
    goal: Goal,
    values: Mapping[str, Mapping[int, Replicated]],
    board: Leaderboard,
    fresh: Set[str] = frozenset(),
    margin: float = 0.0,
    asked: Sequence[str] = (),
) -> Measured:
    """Return a metric's values for the trials that did not fail.

    Args:
        goal: the metric.
        values: trial → epoch → values by seed.
        board: the sweep's leaderboard.
        fresh: trials of which only fresh seeds count. In their settings of the data set, others are not compared.
        margin: largest difference that counts as none.
        asked: columns of the hyperparameters that are compared even if they belong to the data set.
    """
    kept = {text_of(row, "trial"): row for row in board.rows if row["status"] != FAILED}
    places = {trial: place_of(board, row, asked) for trial, row in kept.items()}
    known = {trial: of_one for trial, of_one in values.items() if trial in kept}
    raced = {places[trial] for trial in fresh if trial in places}
    left_out = frozenset(trial for trial in known if places[trial] in raced and trial not in fresh)
    return Measured(goal, known, places, left_out, margin, FIRST_SEEDS if fresh else 0)


def place_of(board: Leaderboard, row: Row, asked: Sequence[str] = ()) -> str:
    """Return the varying settings of a configuration's data set in words, without those asked for; may be empty."""
    axes = [name for name in board.varying if group(name) == "dataset" and name not in asked]
    return ", ".join(f"{short(axis, board.symbols)} {number(row[axis])}" for axis in axes)
