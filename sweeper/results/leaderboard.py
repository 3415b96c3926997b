"""The leaderboard: one row per configuration, replicates as mean ± standard deviation.

The command line's summary and the report both use this module, so they cannot disagree. `selected` gives the
configurations that may be the best, and an interval for the winner's true value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sweeper.core.cells import Row, Rows, by_trial, float_of, float_or_none, int_of, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.labels import Symbols, describe, group, in_order, label, plural, symbols_of
from sweeper.core.statistics.basics import spread_text
from sweeper.journal.best import Mode
from sweeper.journal.state import COMPLETED, FAILED
from sweeper.judging.judge import judge
from sweeper.judging.means import Mean, means
from sweeper.judging.question import NOT_COMPARED, OPEN, SAME, Data, Question
from sweeper.results.queries import CHANGED, PLAIN, measured_sql
from sweeper.search.base import written_method
from trainables.curvature.statistics.base import headline_columns
from trainables.metrics.base import larger_is_better
from trainables.registry.names import measured_as

if TYPE_CHECKING:
    from sweeper.results.results import Results


FINISHED = COMPLETED

#: Intervals whose ends differ by more than this factor are not shown.
WIDEST = 10.0


def final_sql(results: Results, metric: str) -> str:
    """Return the query of each finished trial's final value of a metric, the mean over replicates: rows `trial mean`.

    Raises NotMeasuredError if the sweep did not measure the metric.
    """
    return (
        "SELECT trial, avg(value) AS mean\n"
        f"FROM ({measured_sql(results, metric)}) AS measured JOIN trials USING (trial, replicate)\n"
        f"WHERE status = '{FINISHED}' AND epoch = trials.epochs GROUP BY trial"
    )


@dataclass(frozen=True)
class Goal:
    """The objective of a sweep, or another metric that orders its trials.

    Attributes:
        metric: name in the search space, e.g. `val_nll`.
        mode: `min` or `max`.

    Example:
        >>> goal = Goal("val_ece")
        >>> goal.split, goal.column, goal.direction
        ('val', 'ece', 'ASC')
    """

    metric: str
    mode: Mode = "min"

    @property
    def split(self) -> str:
        """Split on which it is measured: `train`, `val` or `test`."""
        return measured_as(self.metric)[0]

    @property
    def column(self) -> str:
        """Column of the objective in `evaluations`, e.g. `nll`."""
        return measured_as(self.metric)[1]

    @property
    def direction(self) -> str:
        """SQL sort order, best first."""
        return "DESC" if self.mode == "max" else "ASC"

    @property
    def label(self) -> str:
        """Name for readers, e.g. `validation NLL`."""
        return f"{label(self.split)} {label(self.column)}"


class FittedGoal(Goal):
    """A metric after a post-hoc method that was fitted on the same validation data (not cross-fitted)."""

    @property
    def column(self) -> str:
        """The metric's column in `evaluations`."""
        return self.metric.removeprefix("val_")


def objective(results: Results) -> Goal:
    """Return the sweep's objective; validation NLL if the search space is missing.

    Raises SweeperError if the file names an objective that no sweep can have.
    """
    written = results.specification.get("objective", {})
    metric = str(written.get("metric", "val_nll"))
    # The name goes into SQL unquoted, and another program may have written the file.
    if not PLAIN.fullmatch(metric):
        raise SweeperError(f"sweep.yaml has the objective {metric!r}, which is no metric's name", CHANGED)
    return Goal(metric, "max" if written.get("mode") == "max" else "min")


def searcher(results: Results) -> Mapping[str, object]:
    """Return the searcher and its options; empty for random and grid search."""
    written = results.specification.get("searcher")
    return written if isinstance(written, dict) and written_method(written).learns else {}


@dataclass(frozen=True)
class Leaderboard:
    """Evaluated configurations, best first: completed, then stopped, then failed ones.

    The order equals that of `sweeper.journal.best`, which reads the journal instead of the tables.

    Attributes:
        rows: dictionaries with `trial status epochs loss architecture replicates`, `judged` (the objective),
            `<split>_<metric>`, `hessian_<loss>_<field>`, and the varying `config_…`. Each metric also has a standard
            deviation `…_sd`, which is None for fewer than two replicates.
        varying: columns of the hyperparameters that have more than one value in the sweep.
        sql: the query that returns the rows.
        objective: the objective that orders the rows.
        symbols: columns of hyperparameters with another name than the quantity that they are.
    """

    rows: Rows
    varying: tuple[str, ...]
    sql: str
    objective: Goal
    symbols: Symbols = field(default_factory=dict)

    @cached_property
    def finished(self) -> list[Row]:
        """Configurations that ran to the end, best first."""
        return [row for row in self.rows if row["status"] == FINISHED]

    @property
    def best(self) -> Row | None:
        """The best finished configuration, else the best so far; None if all failed or none was evaluated."""
        return next((row for row in self.rows if row["status"] != FAILED), None)

    def describe(self, row: Row) -> str:
        """Return a short description of a configuration, e.g. `focal (γ 1.9) · resnet8 · lr 0.12`."""
        return describe(row, self.varying, self.symbols)

    def value(self, row: Row, column: str = "judged", scale: float = 1.0) -> str:
        """Return a column as `mean ± standard deviation`."""
        mean, deviation = float_or_none(row, column), float_or_none(row, f"{column}_sd")
        return "–" if mean is None or math.isnan(mean) else spread_text(mean, deviation, scale=scale)


def chosen_by(results: Results, metric: str) -> Goal:
    """Return a metric as an objective, e.g. `val_posthoc_temperature_ece`.

    For a metric after a post-hoc method, the cross-fitted metric is returned if the sweep measured it. Otherwise it is
    the metric of the fit on the same data.

    Raises NotMeasuredError if the sweep measured neither.
    """
    goal = Goal(metric, "max" if larger_is_better(measured_as(metric)[1]) else "min")
    fitted = metric.removeprefix("val_")
    if fitted.startswith("posthoc_") and {goal.column, fitted} & {*results.columns("evaluations")} == {fitted}:
        return FittedGoal(metric, goal.mode)
    measured_sql(results, metric)
    return goal


def leaderboard(results: Results, most: int | None = None, by: str | None = None) -> Leaderboard:
    """Return at most `most` configurations of a sweep, best first by the metric `by` (default: its objective).

    A snapshot's leaderboard is read once and shared, so do not change its rows.

    Raises QueryError if the tables cannot be read, NotMeasuredError for a metric that was not measured.
    """
    if (board := results.boards.get((most, by))) is None:
        board = _read(results, most, by)
        if results.frozen is not None:  # without a snapshot, the next call may find more rows
            results.boards[most, by] = board
    return board


def _read(results: Results, most: int | None, by: str | None) -> Leaderboard:
    """Read the leaderboard from the tables; arguments and errors as in `leaderboard`."""
    goal = objective(results) if by is None else chosen_by(results, by)
    # A searched hyperparameter is shown even if only one value was drawn so far, because the reader expects its column.
    asked = {*searched(results.specification.get("space", {}))} & {*results.columns("trials")}
    varying = in_order(dict.fromkeys([*varying_columns(results), *sorted(asked)]))
    sql = leaderboard_sql(results, goal, varying)
    rows: Rows = results.sql(sql, most=most).to_pylist()
    return Leaderboard(rows, varying, sql, goal, symbols_of(results.quantities))


def varying_columns(results: Results) -> tuple[str, ...]:
    """Return the `config_…` columns that distinguish trials: first the loss's, then the architecture's, then others.

    A hyperparameter with a single value per component (absence counts as a value) is left out, since it follows from
    the component's name. For example, the width of `resnet8` is left out if all `resnet8` have the same width, even if
    `mlp` has another width.
    """
    names = [name for name in results.columns("trials") if name.startswith("config_") and name != "config_hash"]
    if not names:
        return ()
    values = results.rows(f"SELECT {', '.join(value_count(name, names) for name in names)}")[0]
    return in_order(name for name in names if (float_or_none(values, name) or 0) > 1)


def searched(space: Mapping[str, object], path: str = "config") -> Iterator[str]:
    """Yield the columns of hyperparameters for which the search space has several values, drawn or not."""
    for key, value in space.items():
        parts = value.get("one_of", [value]) if isinstance(value, Mapping) else ()
        for part in (branch for branch in parts if isinstance(branch, Mapping)):
            if len(part) == 1 and (limits := next(iter(part.values()))) and isinstance(limits, list):
                drawn = len(limits) > 1 and not isinstance(limits[0], Mapping)
                yield from (f"{path}_{key}", f"{path}_{key}_name") if drawn else ()  # `choice: [mlp, …]` draws names
            else:
                yield from searched(part, f"{path}_{key}")


def value_count(column: str, names: Sequence[str]) -> str:
    """Return the SQL for the number of values of a column per name of its component; the largest of these numbers."""
    # `coalesce` is needed because `count(DISTINCT …)` skips NULL, but a hyperparameter that some trials lack does vary.
    owner = f"config_{group(column)}_name"
    by = f" GROUP BY {owner}" if owner in names and owner != column else ""
    counted = f"SELECT count(DISTINCT coalesce({column}::VARCHAR, '')) AS n FROM trials{by}"
    return f"(SELECT max(n) FROM ({counted})) AS {column}"


METRICS = (
    "accuracy", "nll", "ece", "brier", "aurc", "posthoc_temperature_ece", "balanced_accuracy", "majority_share",
    "overconfidence", "underconfidence",
)  # fmt: skip


#: Trials of which only fresh seeds count: their first seeds selected them, at rungs or for the final stage, and they
#: have two fresh ones. Where every trial has fresh seeds, nothing was selected, and seeds of every origin count alike.
#: A single fresh seed has no spread, so it does not replace the others.
ALONE = (
    "SELECT trial FROM final WHERE stage = 'final'\n"
    "  AND EXISTS (SELECT trial FROM final GROUP BY trial HAVING NOT bool_or(stage = 'final'))\n"
    "  GROUP BY trial HAVING count(DISTINCT replicate) > 1"
)

#: The view `final` with two columns: `alone`, whether only the trial's fresh seeds count, and `counts`, whether the
#: replicate does. A trial stopped before it got fresh seeds counts as finished.
FRESH = (
    f"SELECT *, stage = 'final' OR NOT alone AS counts FROM (SELECT *, trial IN ({ALONE}) AS alone FROM final)\n"
    f"QUALIFY status = '{FINISHED}' OR NOT bool_or(stage = 'final') OVER (PARTITION BY trial)"
)


def fresh_replicates(results: Results) -> set[tuple[str, int]]:
    """Return (trial, replicate) of the fresh seeds of trials of which only these count."""
    if "stage" not in results.columns("evaluations"):  # tables from elsewhere may lack the column
        return set()
    rows = results.rows(f"SELECT DISTINCT trial, replicate FROM final WHERE stage = 'final' AND trial IN ({ALONE})")
    return {(text_of(row, "trial"), int_of(row, "replicate")) for row in rows}


def leaderboard_sql(results: Results, goal: Goal, varying: Sequence[str]) -> str:
    """Return the query of the leaderboard for the columns in this sweep's tables.

    Trials with fresh seeds precede other finished trials. They are ordered only by fresh seeds, because their first
    seeds selected them.
    """
    present = set(results.columns("evaluations"))
    metrics = [name for name in METRICS if name in present]
    of_trials = results.columns("trials")
    loss, network = (
        f"any_value({name})" if name in of_trials else "NULL"
        for name in ("config_loss_name", "config_architecture_name")
    )
    # A sweep with one loss and one network has no such columns, but readers rely on the names.
    named = f"{loss} AS loss, {network} AS architecture"
    parts = [f"{named}, count(DISTINCT replicate) AS replicates, {objective_sql(goal, present)}"]
    for split in ("val", "test"):
        parts += [spread_sql(name, f"{split}_{name}", f" FILTER (split = '{split}')") for name in metrics]
    # Curvature is measured only on validation data. Its column is null on test data.
    parts += [spread_sql(name, name, " FILTER (split = 'val')") for name in headline_columns() if name in present]
    parts += [f"any_value({name}) AS {name}" for name in varying]
    columns = ",\n  ".join(parts)
    # NaN has to be sorted explicitly: DuckDB treats it as the largest number, so it would be best in descending order.
    return (
        f"SELECT trial, status, epoch AS epochs,\n  {columns}\nFROM ({FRESH}) AS final\nGROUP BY trial, status, epoch\n"
        f"ORDER BY status = '{FINISHED}' DESC, status = '{FAILED}', bool_or(alone) DESC, "
        f"judged IS NULL OR isnan(judged), judged {goal.direction}, trial"
    )


def objective_sql(goal: Goal, present: set[str]) -> str:
    """Return the SQL of the objective's mean and standard deviation over replicates.

    A metric that is only in `epochs`, such as the training loss, is read from there at the evaluation's epoch.
    """
    if goal.column in present and goal.split in ("val", "test"):
        return spread_sql(goal.column, "judged", f" FILTER (split = '{goal.split}' AND counts)")
    epoch_value = (
        f"(SELECT any_value(epochs.{goal.metric}) FROM epochs WHERE epochs.trial = final.trial "
        "AND epochs.replicate = final.replicate AND epochs.epoch = final.epoch)"
    )
    return spread_sql(epoch_value, "judged", " FILTER (split = 'val' AND counts)")


def spread_sql(expression: str, name: str, condition: str = "") -> str:
    """Return the SQL of a mean and a sample standard deviation over replicates."""
    return f"avg({expression}){condition} AS {name}, stddev_samp({expression}){condition} AS {name}_sd"


@dataclass(frozen=True)
class Winner:
    """The best finished configuration and how far its value can be trusted.

    Attributes:
        value: its mean over seeds with a 95 % interval that allows for its selection.
        entered: number of configurations it was selected from.
        alike: trials that may be as good, and the winner itself, best first.
    """

    value: Mean
    entered: int
    alike: tuple[str, ...]

    @property
    def is_bounded(self) -> bool:
        """Whether the interval is narrow enough to be informative."""
        low, high = self.value.low, self.value.high
        return high - low <= abs(self.value.value) or 0 < high <= WIDEST * low


def selected(results: Results, board: Leaderboard) -> Winner | None:
    """Return the best finished configuration, with the trials that may be as good.

    None if there are fewer than two finished configurations, or if no spread is known: each has one replicate, or
    `evaluations` does not contain the objective.
    """
    known = replicate_values(results, board.objective)
    measured = {trial: known[trial] for row in board.finished if (trial := text_of(row, "trial")) in known}
    goal = board.objective
    question = Question([*measured], goal.metric, goal.mode, relative=goal.mode == "min")
    verdicts = judge(question, Data(measured))
    if verdicts.leader is None or verdicts.code == NOT_COMPARED:
        return None
    # Stopped configurations count, because the winner was selected among all that were evaluated.
    entered = max(len(measured), sum(row["status"] != FAILED for row in board.rows))
    value = means(replace(question, level=0.95), Data(measured), chosen_from=entered)[verdicts.leader]
    alike = [name for name in verdicts.named(OPEN, SAME) if name != verdicts.leader]
    return Winner(value, entered, (verdicts.leader, *alike))


def replicate_values(results: Results, goal: Goal) -> dict[str, dict[int, float]]:
    """Return trial → seed → value of the objective of finished trials; empty if `evaluations` does not contain it."""
    if goal.split not in ("val", "test") or goal.column not in results.columns("evaluations"):
        return {}
    rows = by_trial(results.rows(replicates_sql(goal)))
    return {trial: {int_of(row, "seed"): float_of(row, "value") for row in own} for trial, own in rows.items()}


def replicates_sql(goal: Goal) -> str:
    """Return the query of the objective of every finished replicate; if there are fresh seeds, only of these."""
    # Fresh seeds selected nothing, so their values are unbiased. Mixing them with other seeds would bring the bias
    # back.
    return (
        f"SELECT trial, coalesce(seed, replicate) AS seed, {goal.column} AS value FROM ({FRESH}) AS final\n"
        f"WHERE split = '{goal.split}' AND status = '{FINISHED}' AND isfinite({goal.column}) AND counts\n"
        "QUALIFY alone OR NOT bool_or(alone) OVER () ORDER BY trial, replicate"
    )


def winners_interval(best: Winner) -> str:
    """Return e.g. `Allowing for having picked the best of 48: 0.047 (95 % 0.031 … 0.086)`.

    If there are only two or three seeds and the interval is wider than a factor of ten, the sentence names the remedy
    instead.
    """
    picked = f"Allowing for having picked the best of {best.entered:,}"
    if not best.is_bounded:
        few = plural(best.value.seeds, "seed")
        return f"{picked}, {few} are too few to say its true value (fresh seeds measure it)"
    return f"{picked}: {interval_text(best)}"


def interval_text(best: Winner) -> str:
    """Return the winner's value with its interval, e.g. `0.047 (95 % 0.031 … 0.086)`."""
    return f"{best.value.value:.3g} (95 % {best.value.low:.2g} … {best.value.high:.2g})"
