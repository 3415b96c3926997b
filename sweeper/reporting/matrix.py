"""The best configuration of each loss on each network, before and after temperature scaling, with intervals.

All values are of the split that the objective is measured on. Intervals and comparisons count the chance of seeds (the
replicates' spread, pooled over configurations at the same epoch), not that of having chosen the best of several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sweeper.analysis.statistics.basics import Spread
from sweeper.analysis.statistics.pooled import SeedNoise, seed_noise
from sweeper.journal.state import FAILED
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, Goal, Leaderboard
from sweeper.text.cells import Row, Value, float_or_none, int_of, text_of
from sweeper.text.labels import STATUS_WORDS, describe, label, number, short

AFTER = {
    "nll": ("refinement_nll", "cross_fitted_temperature_nll", "posthoc_temperature_nll"),
    "brier": ("refinement_brier", "cross_fitted_temperature_brier", "posthoc_temperature_brier"),
    "ece": ("cross_fitted_temperature_ece", "posthoc_temperature_ece"),
    "ada_ece": ("cross_fitted_temperature_ada_ece", "posthoc_temperature_ada_ece"),
}  # fmt: skip
"""A metric's columns after temperature scaling; cross-fitted ones first, whose fit did not see the sample."""

SECOND = {"ece": "nll"}
"""What is shown below the objective: ECE, and NLL below an ECE."""

Key = tuple[str, str, str]
"""Data set's settings in words (empty where they do not vary), loss, network."""


@dataclass(frozen=True)
class Measured:
    """One column of the tables at every evaluation.

    Attributes:
        label: in words, e.g. `validation NLL after temperature scaling`.
        values: trial → epoch → mean and spread of its replicates; finite ones only.
        noise: epoch → the replicates' spread, pooled over trials.
        larger: whether it should be large.
    """

    label: str
    values: Mapping[str, Mapping[int, Spread]]
    noise: Mapping[int, SeedNoise | None]
    larger: bool

    def last(self, row: Row) -> Spread | None:
        """Return a trial's value at its last evaluation, None where it has none."""
        found = self.values.get(text_of(row, "trial"), {})
        return found[max(found)] if found else None

    def text(self, row: Row) -> str:
        """Return e.g. `0.0412 (0.0380 … 0.0447)`, the mean alone without a second replicate, or `–`."""
        found = self.values.get(text_of(row, "trial"), {})
        if not found:
            return "–"
        noise, value = self.noise[max(found)], found[max(found)]
        return estimate_text(value.mean, noise.interval(value) if noise is not None else None)

    def better(self, a: Spread, b: Spread) -> bool:
        """Return whether the mean of `a` is better than that of `b`."""
        return (a.mean > b.mean) if self.larger else (a.mean < b.mean)

    def worse(self, best: Row, other: Row) -> bool | None:
        """Return whether `other` is worse than `best` beyond the chance of seeds, at the last epoch that both have.

        None where that is unknown: no epoch in common, or no second replicate.
        """
        mine, others = (self.values.get(text_of(row, "trial"), {}) for row in (best, other))
        epoch = max(mine.keys() & others.keys(), default=None)
        noise = self.noise[epoch] if epoch is not None else None
        if epoch is None or noise is None:
            return None
        return noise.apart(mine[epoch], others[epoch]) and self.better(mine[epoch], others[epoch])


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

    def best(self, place: str, family: str | None = None, network: str | None = None) -> Row | None:
        """Return the best configuration of a slice, of a loss in it, or of a network in it."""
        for (where, loss, net), rows in self.cells.items():
            if where == place and family in (None, loss) and network in (None, net):
                return rows[0]
        return None


def matrix(results: Results, board: Leaderboard) -> Matrix | None:
    """Return the best configurations by loss and network; None where nothing was evaluated."""
    present = results.columns("evaluations")
    goal = board.objective
    before, after = columns_of(goal, present)
    second = SECOND.get(before or goal.column, "ece")
    wanted = [name for name in dict.fromkeys((before, *after, second, *AFTER.get(second, ()))) if name in present]
    values = evaluated(results, goal.split if goal.split in ("val", "test") else "val", wanted)
    values[goal.metric] = values[goal.column] if goal.column in values else by_epoch(results, goal)
    measured = {name: measure(name, goal, found, board) for name, found in values.items() if found}
    if goal.metric not in measured:
        return None
    decides = measured[goal.metric]
    if goal.column in measured:
        measured[goal.column] = decides  # one and the same
    chosen = next((measured[name] for name in after if name in measured), None)
    return Matrix(
        cells_of(board, decides),
        measured.get(before) if before is not None else decides,
        chosen,
        decides,
        (measured.get(second), next((measured[name] for name in AFTER.get(second, ()) if name in measured), None)),
        board.varying,
    )


def columns_of(goal: Goal, present: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the objective's column before temperature scaling, and the candidates after it, best first."""
    for base, candidates in AFTER.items():
        if goal.column in candidates:
            return base, (goal.column,)
    return (goal.column if goal.column in present else None), AFTER.get(goal.column, ())


def cells_of(board: Leaderboard, decides: Measured) -> dict[Key, list[Row]]:
    """Return the configurations of each loss and network, in the order of the leaderboard."""
    axes = [name for name in board.varying if name.startswith("config_dataset_")]
    found: dict[Key, list[Row]] = {}
    for row in board.rows:
        if row["status"] != FAILED and decides.last(row) is not None:
            place = ", ".join(f"{short(axis)} {number(row[axis])}" for axis in axes)
            found.setdefault((place, named(row["loss"]), named(row["architecture"])), []).append(row)
    order = {key: at for at, key in enumerate(found)}
    return {key: found[key] for key in sorted(found, key=lambda key: (key[0], order[key]))} if axes else found


def named(value: Value) -> str:
    """Return a component's name; sweeps of which the tables do not name it have one."""
    return "all" if value is None else str(value)


def evaluated(results: Results, split: str, columns: Sequence[str]) -> dict[str, dict[str, dict[int, Spread]]]:
    """Return column → trial → epoch → mean and spread over replicates, of every evaluation on a split."""
    if not columns:
        return {}
    parts = ", ".join(f"avg({c}) AS {c}, stddev_samp({c}) AS {c}_sd, count({c}) AS {c}_n" for c in columns)
    rows = results.rows(
        f"SELECT trial, epoch, {parts} FROM (SELECT * FROM evaluations WHERE split = '{split}' "
        "QUALIFY row_number() OVER (PARTITION BY trial, replicate, epoch ORDER BY stage) = 1) GROUP BY trial, epoch"
    )
    return {column: spreads(rows, column) for column in columns}


def by_epoch(results: Results, goal: Goal) -> dict[str, dict[int, Spread]]:
    """Return the same of an objective that only `epochs` has, such as the training loss."""
    if goal.metric not in results.columns("epochs"):
        return {}
    name = goal.metric
    rows = results.rows(
        f"SELECT trial, epoch, avg({name}) AS {name}, stddev_samp({name}) AS {name}_sd, count({name}) AS {name}_n "
        "FROM epochs GROUP BY trial, epoch"
    )
    return spreads(rows, name)


def spreads(rows: Sequence[Row], column: str) -> dict[str, dict[int, Spread]]:
    """Return trial → epoch → the column's mean and spread; what is missing or not finite is left out."""
    found: dict[str, dict[int, Spread]] = {}
    for row in rows:
        mean = float_or_none(row, column)
        if mean is not None and math.isfinite(mean):
            value = Spread(mean, float_or_none(row, f"{column}_sd"), int_of(row, f"{column}_n"))
            found.setdefault(text_of(row, "trial"), {})[int_of(row, "epoch")] = value
    return found


def measure(column: str, goal: Goal, values: Mapping[str, Mapping[int, Spread]], board: Leaderboard) -> Measured:
    """Return a column with its pooled spread at each epoch."""
    larger = goal.mode == "max" if column in (goal.metric, goal.column) else False
    kept = {text_of(row, "trial") for row in board.rows if row["status"] != FAILED}
    epochs = sorted({epoch for trial, found in values.items() for epoch in found if trial in kept})
    base = next((name for name, after in AFTER.items() if column in after), None)
    words = f"{label(base)} after temperature scaling" if base else label(column)
    words = goal.label if column == goal.metric and base is None else words
    noise = {}
    for epoch in epochs:
        spread = [found[epoch] for trial, found in values.items() if trial in kept and epoch in found]
        relative = not larger and all(value.mean >= 0 for value in spread)
        noise[epoch] = seed_noise(spread, relative=relative)
    return Measured(words, {trial: found for trial, found in values.items() if trial in kept}, noise, larger)


def best_after(rows: Sequence[Row], after: Measured) -> Row | None:
    """Return the configuration that is best after temperature scaling; of those that finished where any did."""
    measured = [row for row in rows if after.last(row) is not None]
    finished = [row for row in measured if row["status"] == FINISHED] or measured
    best: Row | None = None
    for row in finished:
        value, so_far = after.last(row), after.last(best) if best is not None else None
        if value is not None and (so_far is None or after.better(value, so_far)):
            best = row
    return best


def estimate_text(mean: float, interval: tuple[float, float] | None) -> str:
    """Return a mean and its interval, all to the same place: that of the half width's second digit."""
    half = (interval[1] - interval[0]) / 2 if interval is not None else 0.0
    if interval is None or not half > 0 or not math.isfinite(half):
        return f"{mean:.3g}"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{mean:.{places}f} ({interval[0]:.{places}f} … {interval[1]:.{places}f})"


class Cell(NamedTuple):
    """What one cell of the matrix shows.

    Attributes:
        trial: the best configuration.
        mark: `best` of the slice, `alike` (no worse within the chance of seeds), `worse`, or empty where unknown.
        values: the objective before and after temperature scaling, with an interval where it decides.
        means: the same without intervals.
        second: the other metric before and after, with its name.
        configuration: its hyperparameters in words.
        state: how many configurations it is the best of, and whether it was stopped.
    """

    trial: str
    mark: str
    values: str
    means: str
    second: str
    configuration: str
    state: str


def grid(found: Matrix, place: str) -> list[tuple[str, list[Cell | None]]]:
    """Return one slice: each loss with its cells, one for each of `networks()`; None where nothing was evaluated."""
    networks = found.networks()
    lines = (
        (family, [cell_of(found, (place, family, network)) for network in networks]) for family in found.families()
    )
    return [(family, cells) for family, cells in lines if any(cells)]


def cell_of(found: Matrix, key: Key) -> Cell | None:
    """Return one cell; None where nothing was evaluated."""
    rows = found.cells.get(key)
    if not rows:
        return None
    row, best = rows[0], found.best(key[0])
    verdict = found.decides.worse(best, row) if best is not None else None
    finished = sum(each["status"] == FINISHED for each in rows)
    state = f"best of {len(rows)}, {finished} finished"
    if row["status"] != FINISHED:
        state = f"{STATUS_WORDS[text_of(row, 'status')]}, epoch {row['epochs']}; {state}"
    told = {"config_loss_name", "config_architecture_name"}
    rest = [n for n in found.varying if n not in told and not n.startswith("config_dataset_") and row[n] is not None]
    return Cell(
        text_of(row, "trial"),
        "best" if row is best else {False: "alike", True: "worse", None: ""}[verdict],
        arrow(
            *(part.text(row) if part is found.decides else mean_of(part, row) for part in (found.before, found.after))
        ),
        arrow(*(mean_of(part, row) for part in (found.before, found.after))),
        second_of(found, row),
        describe(row, rest) if rest else "",
        state,
    )


def second_of(found: Matrix, row: Row) -> str:
    """Return the second metric before and after, e.g. `ECE 0.035 → 0.021`; empty where it is not measured."""
    both = arrow(*(mean_of(part, row) for part in found.second))
    return f"{found.second[0].label} {both}" if found.second[0] is not None and both else ""


def mean_of(measured: Measured | None, row: Row) -> str | None:
    """Return a configuration's mean in three digits; None where there is none."""
    value = measured.last(row) if measured is not None else None
    return None if value is None else number(value.mean)


def arrow(before: str | None, after: str | None) -> str:
    """Return `before → after`, or the one that there is."""
    return " → ".join(part for part in (before, after) if part is not None)
