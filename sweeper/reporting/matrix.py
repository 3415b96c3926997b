"""The best configuration of each loss on each network, before and after temperature scaling, with intervals.

All values are of the split that the objective is measured on. Intervals cover variation between seeds, each
configuration by its own spread (`spreads`), and allow for its having been picked from all configurations of its cell.
Comparisons, which are those of `best_set`, are over all configurations at the same epoch. What was stopped at an
earlier epoch than the best is compared with nothing: at its rung it was behind, and what it would have come to is not
known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from sweeper.analysis.statistics.basics import Spread, spread
from sweeper.analysis.statistics.best_set import Comparisons
from sweeper.analysis.statistics.spreads import spreads
from sweeper.journal.state import FAILED
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Goal, Leaderboard, against_constraints
from sweeper.text.cells import Row, float_or_none, int_of, text_of
from sweeper.text.labels import label, number, short

#: A metric's columns after temperature scaling; cross-fitted ones first, whose fit did not see the sample.
AFTER = {
    "nll": ("refinement_nll", "cross_fitted_temperature_nll", "posthoc_temperature_nll"),
    "brier": ("refinement_brier", "cross_fitted_temperature_brier", "posthoc_temperature_brier"),
    "ece": ("cross_fitted_temperature_ece", "posthoc_temperature_ece"),
    "ada_ece": ("cross_fitted_temperature_ada_ece", "posthoc_temperature_ada_ece"),
}  # fmt: skip

#: What is shown below the objective: ECE, and NLL below an ECE.
SECOND = {"ece": "nll"}

#: Data set's settings in words (empty where they do not vary), loss, network.
Key = tuple[str, str, str]

#: Seed → value.
Replicated = Mapping[int, float]


@dataclass(frozen=True)
class Measured:
    """One column of the tables at every evaluation.

    Attributes:
        label: in words, e.g. `validation NLL`, `refinement NLL`.
        values: trial → epoch → its replicates' values; finite ones only.
        larger: whether it should be large.
        places: trial → its setting of the data set; only those of one setting are compared.
        cells: trial → how many configurations of its loss and network there are, stopped ones included.
        left_out: trials that are compared with none: they break a constraint.
        cross_fitted: whether values are after temperature scaling that was fitted on other samples.
    """

    label: str
    values: Mapping[str, Mapping[int, Replicated]]
    larger: bool
    places: Mapping[str, str]
    cells: Mapping[str, int]
    left_out: Set[str] = frozenset()
    cross_fitted: bool = False
    _compared: dict[tuple[str, int], tuple[list[str], Comparisons | None]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def last(self, row: Row) -> Spread | None:
        """Return a trial's value at its last evaluation, None where it has none."""
        found = self.values.get(text_of(row, "trial"), {})
        return spread([*found[max(found)].values()]) if found else None

    def compared(self, trial: str) -> tuple[list[str], Comparisons | None]:
        """Return the trials that a trial is compared with at its last evaluation, it among them, and how.

        No comparison where no spread can be estimated: one replicate each, or all values the same.
        """
        place, epoch = self.places[trial], max(self.values[trial])
        if (place, epoch) not in self._compared:
            there = [name for name, found in self.values.items() if epoch in found and self.places[name] == place]
            trials = [name for name in there if name not in self.left_out]
            found = spreads([self.values[name][epoch] for name in trials], "max" if self.larger else "min")
            self._compared[place, epoch] = trials, None if found is None else Comparisons(found)
        return self._compared[place, epoch]

    @property
    def judged(self) -> bool:
        """Whether differences can be judged at any epoch: some configuration has replicates that differ."""
        return any(len({*found.values()}) > 1 for epochs in self.values.values() for found in epochs.values())

    @property
    def repeated(self) -> bool:
        """Whether some configuration has a second replicate."""
        return any(len(found) > 1 for epochs in self.values.values() for found in epochs.values())

    def interval(self, trial: str, *, picked: bool = True) -> tuple[float, float] | None:
        """Return the 95 % interval of a trial's mean at its last evaluation; None where nothing is known.

        It allows for the trial's having been picked from all of its cell, by its value, by rungs, or by both; unless
        `picked`, it is that of any trial.
        """
        trials, found = self.compared(trial)
        if found is None or trial not in trials:
            return None
        return found.spreads.interval(trials.index(trial), chosen_from=self.cells[trial] if picked else 1)

    def best_of(self, values: Sequence[Spread | None]) -> int | None:
        """Return the place of the best mean, the first of equal ones; None where there is none."""
        means = {at: value.mean for at, value in enumerate(values) if value is not None}
        return (max if self.larger else min)(means, key=lambda at: means[at], default=None)

    def worse(self, best: Row, other: Row) -> bool | None:
        """Return whether `other` is significantly worse than `best`, both at their last evaluation.

        By multiple comparisons with the best, as `best_set`: where `best` is the best of all that are compared there,
        whether `other` is out of their best set. None where that is unknown: they were last evaluated at different
        epochs, one of them nowhere, or without a second replicate.
        """
        first, second = (text_of(row, "trial") for row in (best, other))
        epochs = [max(self.values.get(name, {}), default=None) for name in (first, second)]
        if None in epochs or epochs[0] != epochs[1]:
            return None
        trials, found = self.compared(first)
        if found is None or not {first, second} <= set(trials):
            return None
        mine, others = trials.index(first), trials.index(second)
        if mine == int(found.spreads.scores.argmax()):
            return not found.may_be_best[others]
        return found.is_behind(others, mine)

    def none_may_be_best(self, best: Row, rows: Sequence[Row]) -> bool | None:
        """Return whether all of `rows` that can be compared with `best` are worse; None where none can."""
        verdicts = {self.worse(best, row) for row in rows}
        return False if False in verdicts else True if True in verdicts else None


@dataclass(frozen=True)
class Matrix:
    """Losses × networks, for each setting of the data set.

    Attributes:
        cells: key → the configurations of that loss on that network, best first; failed ones left out.
        before: the objective's metric without post-hoc calibration; None where it is not measured.
        after: the same after temperature scaling, where that is measured.
        decides: whichever of the two is the objective.
        second: another metric, before and after, each None where it is not measured.
        varying: columns of the hyperparameters that vary.
    """

    cells: Mapping[Key, Sequence[Row]]
    before: Measured | None
    after: Measured | None
    decides: Measured
    second: tuple[Measured | None, Measured | None]
    varying: Sequence[str]

    @property
    def slices(self) -> list[str]:
        """The data set's settings, in words; one empty text where they do not vary."""
        return list(dict.fromkeys(key[0] for key in self.cells))

    def families(self) -> list[str]:
        """Return the losses, the one with the best configuration first."""
        return list(dict.fromkeys(key[1] for key in self.cells))

    def networks(self) -> list[str]:
        """Return the networks, by name."""
        return sorted({key[2] for key in self.cells})

    def best(self, place: str) -> Row | None:
        """Return the best configuration of a slice."""
        return next((rows[0] for key, rows in self.cells.items() if key[0] == place), None)

    def none_may_be_best(self, key: Key) -> bool | None:
        """Return whether no configuration of a cell may be the best of its slice; None where none is compared."""
        best = self.best(key[0])
        return None if best is None else self.decides.none_may_be_best(best, self.cells[key])


def matrix(results: Results, board: Leaderboard) -> Matrix | None:
    """Return the best configurations by loss and network; None where nothing was evaluated."""
    present = results.columns("evaluations")
    goal = board.objective
    before, after = columns_of(goal, present)
    second = SECOND.get(before or goal.column, "ece")
    wanted = [name for name in dict.fromkeys((before, *after, second, *AFTER.get(second, ()))) if name in present]
    values = evaluated(results, goal.split if goal.split in ("val", "test") else "val", wanted)
    values[goal.metric] = values[goal.column] if goal.column in values else by_epoch(results, goal)
    against = frozenset(against_constraints(results))
    measured = {name: measure(name, goal, found, board, against) for name, found in values.items() if found}
    if goal.metric not in measured:
        return None
    decides = measured[goal.metric]
    if goal.column in measured:
        measured[goal.column] = decides  # one and the same
    plain = measured.get(before) if before is not None else decides
    scaled = next((measured[name] for name in after if name in measured), None)
    others = measured.get(second), next((measured[name] for name in AFTER.get(second, ()) if name in measured), None)
    return Matrix(cells_of(board, decides), plain, scaled, decides, others, board.varying)


def columns_of(goal: Goal, present: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the objective's column before temperature scaling, and the candidates after it, best first."""
    for base, candidates in AFTER.items():
        if goal.column in candidates:
            return base, (goal.column,)
    return (goal.column if goal.column in present else None), AFTER.get(goal.column, ())


def cells_of(board: Leaderboard, decides: Measured) -> dict[Key, list[Row]]:
    """Return the configurations of each loss and network, in the order of the leaderboard.

    Of those that were stopped, the ones trained furthest come first: values at epoch 3 and 9 are not comparable.
    """
    found: dict[Key, list[Row]] = {}
    for row in sorted(board.rows, key=lambda row: (row["status"] != FINISHED, -int_of(row, "epochs"))):
        if row["status"] != FAILED and decides.last(row) is not None:
            found.setdefault(key_of(board, row), []).append(row)
    order = {key: at for at, key in enumerate(found)}
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], order[key]))}


def evaluated(results: Results, split: str, columns: Sequence[str]) -> dict[str, dict[str, dict[int, Replicated]]]:
    """Return column → trial → epoch → the replicates' values, of every evaluation on a split."""
    if not columns:
        return {}
    rows = results.rows(
        f"SELECT trial, epoch, seed, {', '.join(columns)} FROM (SELECT * FROM evaluations WHERE split = '{split}' "
        "QUALIFY row_number() OVER (PARTITION BY trial, replicate, epoch ORDER BY stage) = 1) "
        f"{_WITH_SEEDS} ORDER BY trial, epoch, replicate"
    )
    return {column: replicated(rows, column) for column in columns}


#: Replicates by seed, or by number where a table has no seeds.
_WITH_SEEDS = (
    "JOIN (SELECT DISTINCT trial, replicate, coalesce(seed, replicate) AS seed FROM trials) USING (trial, replicate)"
)


def by_epoch(results: Results, goal: Goal) -> dict[str, dict[int, Replicated]]:
    """Return the same of an objective that only `epochs` has, such as the training loss."""
    if goal.metric not in results.columns("epochs"):
        return {}
    columns = f"trial, epoch, seed, {goal.metric}"
    rows = results.rows(f"SELECT {columns} FROM epochs {_WITH_SEEDS} ORDER BY trial, epoch, replicate")
    return replicated(rows, goal.metric)


def replicated(rows: Sequence[Row], column: str) -> dict[str, dict[int, Replicated]]:
    """Return trial → epoch → the column's values by seed; what is missing or not finite is left out."""
    found: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        value = float_or_none(row, column)
        if value is not None and math.isfinite(value):
            found[text_of(row, "trial")][int_of(row, "epoch")][int_of(row, "seed")] = value
    return {trial: {**epochs} for trial, epochs in found.items()}


def measure(
    column: str,
    goal: Goal,
    values: Mapping[str, Mapping[int, Replicated]],
    board: Leaderboard,
    left_out: Set[str] = frozenset(),
) -> Measured:
    """Return a column of the trials that did not fail."""
    larger = goal.mode == "max" and column in (goal.metric, goal.column)
    kept = {text_of(row, "trial"): row for row in board.rows if row["status"] != FAILED}
    words = goal.label if column in (goal.metric, goal.column) else label(column)
    sizes = Counter(key_of(board, row) for row in kept.values())
    values = {trial: found for trial, found in values.items() if trial in kept}
    places = {trial: place_of(board, row) for trial, row in kept.items()}
    cells = {trial: sizes[key_of(board, row)] for trial, row in kept.items()}
    cross_fitted = column.removeprefix("val_").startswith(("refinement_", "cross_fitted_"))
    return Measured(words, values, larger, places, cells, left_out, cross_fitted)


def key_of(board: Leaderboard, row: Row) -> Key:
    """Return the cell that a configuration belongs to."""
    return place_of(board, row), str(row["loss"] or "all"), str(row["architecture"] or "all")


def place_of(board: Leaderboard, row: Row) -> str:
    """Return the data set's varying settings of a configuration in words; empty where they do not vary."""
    axes = [name for name in board.varying if name.startswith("config_dataset_")]
    return ", ".join(f"{short(axis)} {number(row[axis])}" for axis in axes)


def best_after(rows: Sequence[Row], after: Measured) -> Row | None:
    """Return the configuration that is best after temperature scaling; of those that finished where any did."""
    measured = [row for row in rows if after.last(row) is not None]
    finished = [row for row in measured if row["status"] == FINISHED] or measured
    best = after.best_of([after.last(row) for row in finished])
    return None if best is None else finished[best]
