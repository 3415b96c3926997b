"""The leaderboard: one row per configuration, replicates as mean ± standard deviation.

The command line's summary and the report both use this module, so they cannot disagree. For several objectives it also
computes the Pareto front. For constraints, it finds the trials that break them and so cannot be the best. `selected`
gives the configurations that may be the best, and an interval for the winner's true value; the statistics are in
`sweeper.core.statistics.best_set`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sweeper.core.cells import Row, Rows, by_trial, float_of, float_or_none, int_of, text_of
from sweeper.core.errors import SweeperError
from sweeper.core.labels import describe, group, in_order, label, plural
from sweeper.core.statistics.basics import spread_text
from sweeper.core.statistics.best_set import BestSet, best_set
from sweeper.journal.best import Objective
from sweeper.journal.state import COMPLETED, FAILED
from sweeper.results.queries import CHANGED, PLAIN, NotMeasuredError, literal, measured_sql
from sweeper.scheduling.ranking import Constraint, constraint_of, keeping, pareto_front
from sweeper.search.base import written_method
from trainables.curvature.statistics.base import headline_columns
from trainables.metrics.base import larger_is_better
from trainables.registry.names import measured_as

if TYPE_CHECKING:
    from sweeper.results.results import Results


FINISHED = COMPLETED


@dataclass(frozen=True)
class Front:
    """The Pareto front: the trials that no other trial dominates by more than the replicates' standard errors.

    Attributes:
        goals: the objectives.
        trials: trials on the front, best by the first objective first.
        values: trial → mean and standard error for each objective.
        finished: number of trials compared.
    """

    goals: tuple[Objective, ...]
    trials: list[str]
    values: dict[str, list[tuple[float, float]]]
    finished: int

    def lines(self) -> list[str]:
        """Return the front in sentences: a heading, and a line for each trial."""
        names = ", ".join(goal.metric for goal in self.goals)
        replicated = any(error for of_trial in self.values.values() for _, error in of_trial)
        errors = " (mean ± standard error)" if replicated else ""
        text = [f"Pareto front by {names}: {len(self.trials)} of {self.finished} finished trials{errors}"]
        for trial in self.trials:
            shown = (
                f"{goal.metric} {mean:.4g}" + (f" ± {error:.2g}" if error else "")
                for goal, (mean, error) in zip(self.goals, self.values[trial], strict=True)
            )
            text.append(f"  {trial}: {', '.join(shown)}")
        return text


def final_values(results: Results, metric: str) -> dict[str, tuple[float, float]]:
    """Return each finished trial's final value of a metric: mean over replicates, and standard error (0 for one)."""
    try:
        rows = results.rows(final_sql(results, metric))
    except NotMeasuredError:
        return {}
    return {text_of(row, "trial"): (float_of(row, "mean"), float_or_none(row, "error") or 0.0) for row in rows}


def final_sql(results: Results, metric: str) -> str:
    """Return the query of `final_values`: rows `trial mean error`.

    Raises NotMeasuredError if the sweep did not measure the metric.
    """
    return (
        "SELECT trial, avg(value) AS mean, stddev_samp(value) / sqrt(count(value)) AS error\n"
        f"FROM ({measured_sql(results, metric)}) AS measured JOIN trials USING (trial, replicate)\n"
        f"WHERE status = '{FINISHED}' AND epoch = trials.epochs GROUP BY trial"
    )


def constraints_of(results: Results) -> list[Constraint]:
    """Return the constraints of a sweep."""
    return [constraint_of(written) for written in results.specification.get("constraints", ())]


def breaking_constraints(results: Results) -> set[str]:
    """Return the finished trials that break any of the sweep's constraints."""
    constraints = constraints_of(results)
    measured: dict[str, dict[str, float]] = {}
    for metric in {constraint.goal.metric for constraint in constraints}:
        for trial, (mean, _) in final_values(results, metric).items():
            measured.setdefault(trial, {})[metric] = mean
    return measured.keys() - keeping(constraints, measured)


def front(results: Results) -> Front | None:
    """Return the Pareto front of a sweep with several objectives; None for one objective, or if no trial finished."""
    written = results.specification.get("objectives", ())
    goals = tuple(Objective(goal["metric"], goal["mode"]) for goal in written)
    if len(goals) < 2:
        return None
    measured = [final_values(results, goal.metric) for goal in goals]
    kept = set.intersection(*map(set, measured)) - breaking_constraints(results)
    values = {trial: [by_trial[trial] for by_trial in measured] for trial in sorted(kept)}
    # A diverged trial does not belong on the front.
    values = {trial: pairs for trial, pairs in values.items() if all(math.isfinite(mean) for mean, _ in pairs)}
    trials = [*values]
    if not trials:
        return None
    costs = np.array([[g.cost(m) for g, (m, _) in zip(goals, values[t], strict=True)] for t in trials])
    errors = np.array([[error for _, error in values[trial]] for trial in trials])
    on_front = sorted(pareto_front(costs, errors), key=lambda place: costs[place, 0])
    return Front(goals, [trials[place] for place in on_front], values, len(trials))


#: Mark of a configuration that breaks a constraint.
MARK = "†"


@dataclass(frozen=True)
class Goal(Objective):
    """An objective with its name for readers."""

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
        breaking: finished trials that break a constraint; they follow those that meet all.
        constraints: the sweep's constraints in words.
    """

    rows: Rows
    varying: tuple[str, ...]
    sql: str
    objective: Goal
    breaking: frozenset[str] = frozenset()
    constraints: tuple[str, ...] = ()

    @cached_property
    def finished(self) -> list[Row]:
        """Configurations that ran to the end, best first."""
        return [row for row in self.rows if row["status"] == FINISHED]

    @property
    def best(self) -> Row | None:
        """The best finished configuration, else the best so far; None if all failed or none was evaluated."""
        return next((row for row in self.rows if row["status"] != FAILED), None)

    def breaks_constraint(self, row: Row) -> bool:
        """Return whether a configuration finished and breaks a constraint."""
        return row["trial"] in self.breaking

    def legend(self, rows: Rows) -> str | None:
        """Return the explanation of MARK if one of the rows has it, else None."""
        if not any(map(self.breaks_constraint, rows)):
            return None
        return f"{MARK} breaks a constraint: {', '.join(self.constraints)}"

    def describe(self, row: Row) -> str:
        """Return a short description of a configuration, e.g. `focal (γ 1.9) · resnet8 · lr 0.12`."""
        return describe(row, self.varying)

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

    Raises QueryError if the tables cannot be read, NotMeasuredError for a metric that was not measured.
    """
    goal = objective(results) if by is None else chosen_by(results, by)
    # A searched hyperparameter is shown even if only one value was drawn so far, because the reader expects its column.
    asked = {*searched(results.specification.get("space", {}))} & {*results.columns("trials")}
    varying = in_order(dict.fromkeys([*varying_columns(results), *sorted(asked)]))
    breaking = breaking_constraints(results)
    sql = leaderboard_sql(results, goal, varying, breaking)
    rows: Rows = results.sql(sql, most=most).to_pylist()
    constraints = tuple(constraint.text for constraint in constraints_of(results))
    return Leaderboard(rows, varying, sql, goal, frozenset(breaking), constraints)


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


#: The view `final` with a column `counts`, which is true for the replicates by which a trial is judged. If a trial has
#: fresh seeds, only these count, because its first seeds selected it. A trial stopped before it got them counts as
#: finished.
FRESH = (
    "SELECT *, stage = 'final' OR NOT bool_or(stage = 'final') OVER each AS counts FROM final\n"
    f"WINDOW each AS (PARTITION BY trial) QUALIFY status = '{FINISHED}' OR NOT bool_or(stage = 'final') OVER each"
)


def leaderboard_sql(results: Results, goal: Goal, varying: Sequence[str], breaking: set[str]) -> str:
    """Return the query of the leaderboard for the columns in this sweep's tables.

    Finished trials that break a constraint (`breaking`) follow those that break none, whatever their objective. Trials
    with fresh seeds precede other finished trials. They are ordered only by fresh seeds, because their first seeds
    selected them.
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
    last = f"trial IN ({', '.join(map(literal, sorted(breaking)))}), " if breaking else ""
    # NaN has to be sorted explicitly: DuckDB treats it as the largest number, so it would be best in descending order.
    return (
        f"SELECT trial, status, epoch AS epochs,\n  {columns}\nFROM ({FRESH}) AS final\nGROUP BY trial, status, epoch\n"
        f"ORDER BY status = '{FINISHED}' DESC, status = '{FAILED}', {last}bool_or(stage = 'final') DESC, "
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


def selected(results: Results, board: Leaderboard) -> tuple[list[str], BestSet] | None:
    """Return the trials that may be the best, best first, with the statistics of the winner.

    Only finished configurations that meet the constraints are compared. None if there are fewer than two, or if no
    spread is known. The spread is unknown if each has one replicate, or if `evaluations` does not contain the
    objective.
    """
    known = replicate_values(results, board.objective)
    kept = [text_of(row, "trial") for row in board.finished if not board.breaks_constraint(row)]
    measured = {trial: known[trial] for trial in kept if trial in known}
    if len(measured) < 2:
        return None
    # `entered` includes stopped configurations, because the winner was selected among all that were evaluated.
    best = best_set(
        list(measured.values()), board.objective.mode, entered=sum(row["status"] != FAILED for row in board.rows)
    )
    return None if best is None else ([list(measured)[place] for place in best.members], best)


def replicate_values(results: Results, goal: Goal) -> dict[str, dict[int, float]]:
    """Return trial → seed → value of the objective of finished trials; empty if `evaluations` does not contain it."""
    if goal.split not in ("val", "test") or goal.column not in results.columns("evaluations"):
        return {}
    rows = by_trial(results.rows(replicates_sql(goal)))
    return {trial: {int_of(row, "seed"): float_of(row, "value") for row in own} for trial, own in rows.items()}


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
