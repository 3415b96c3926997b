"""Several objectives and constraints in the tables: who is on the Pareto front, and who must not be called the best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sweeper.results.queries import NotMeasuredError, measured_sql
from sweeper.scheduling.ranking import Constraint, Goal, constraint_of, hypervolume, keeping, pareto_front
from sweeper.text.cells import float_of, float_or_none, int_of, text_of

if TYPE_CHECKING:
    from sweeper.results.results import Results

FINISHED = "completed"


@dataclass(frozen=True)
class Front:
    """The trials that no other dominates beyond the replicates' standard errors.

    Attributes:
        goals: the objectives.
        trials: on the front, by their values of the first objective, best first.
        values: trial → a mean and its standard error for each objective.
        finished: how many trials were compared.
        course: epochs spent, and the hypervolume by then, as trials finished.
    """

    goals: tuple[Goal, ...]
    trials: list[str]
    values: dict[str, list[tuple[float, float]]]
    finished: int
    course: list[tuple[int, float]]

    def lines(self) -> list[str]:
        """Return the front in sentences: a heading, a line for each trial, and the hypervolume."""
        names = ", ".join(goal.metric for goal in self.goals)
        errors = " (mean ± standard error)" if any(error for each in self.values.values() for _, error in each) else ""
        found = [f"Pareto front by {names}: {len(self.trials)} of {self.finished} finished trials{errors}"]
        for trial in self.trials:
            shown = (
                f"{goal.metric} {mean:.4g}" + (f" ± {error:.2g}" if error else "")
                for goal, (mean, error) in zip(self.goals, self.values[trial], strict=True)
            )
            found.append(f"  {trial}: {', '.join(shown)}")
        if self.course and self.course[-1][1] > 0:
            total = self.course[-1][1]
            half = next(epochs for epochs, volume in self.course if volume >= total / 2)
            found.append(
                f"  hypervolume {total:.4g} of 1, in shares of each objective's range over finished trials, after "
                f"{self.course[-1][0]:,} epochs; half of it after {half:,}"
            )
        return found


def final_values(results: Results, metric: str) -> dict[str, tuple[float, float]]:
    """Return a metric of each finished trial at its end: its mean over replicates, and the standard error or 0."""
    try:
        rows = results.rows(final_sql(results, metric))
    except NotMeasuredError:
        return {}
    return {text_of(row, "trial"): (float_of(row, "mean"), float_or_none(row, "error") or 0.0) for row in rows}


def final_sql(results: Results, metric: str) -> str:
    """Return the query of `final_values`: rows `trial mean error`. Raises NotMeasuredError."""
    return (
        "SELECT trial, avg(value) AS mean, stddev_samp(value) / sqrt(count(value)) AS error\n"
        f"FROM ({measured_sql(results, metric)}) AS measured JOIN trials USING (trial, replicate)\n"
        f"WHERE status = '{FINISHED}' AND epoch = trials.epochs GROUP BY trial"
    )


def constraints_of(results: Results) -> list[Constraint]:
    """Return the constraints of a sweep."""
    return [constraint_of(written) for written in results.specification.get("constraints", ())]


def against_constraints(results: Results) -> set[str]:
    """Return the finished trials that break one of the sweep's constraints."""
    constraints = constraints_of(results)
    measured: dict[str, dict[str, float]] = {}
    for metric in {constraint.goal.metric for constraint in constraints}:
        for trial, (mean, _) in final_values(results, metric).items():
            measured.setdefault(trial, {})[metric] = mean
    return measured.keys() - keeping(constraints, measured)


def front(results: Results) -> Front | None:
    """Return the Pareto front of a sweep with several objectives; `None` for one, or where nothing has finished."""
    written = results.specification.get("objectives", ())
    goals = tuple(Goal(each["metric"], each["mode"]) for each in written)
    if len(goals) < 2:
        return None
    measured = [final_values(results, goal.metric) for goal in goals]
    kept = set.intersection(*(set(each) for each in measured)) - against_constraints(results)
    trials = sorted(kept)
    values = {trial: [each[trial] for each in measured] for trial in trials}
    values = {trial: found for trial, found in values.items() if all(math.isfinite(mean) for mean, _ in found)}
    trials = [trial for trial in trials if trial in values]
    if not trials:
        return None
    costs = np.array([[g.cost(m) for g, (m, _) in zip(goals, values[t], strict=True)] for t in trials])
    errors = np.array([[error for _, error in values[trial]] for trial in trials])
    on_front = sorted(pareto_front(costs, errors), key=lambda place: costs[place, 0])
    return Front(goals, [trials[place] for place in on_front], values, len(trials), _course(results, trials, costs))


def _course(results: Results, trials: list[str], costs: Any) -> list[tuple[int, float]]:
    """Return epochs spent and hypervolume at the end of each trial, objectives in shares of their range."""
    width = np.ptp(costs, axis=0)
    shares = (costs - costs.min(axis=0)) / np.where(width > 0, width, 1.0)
    rows = results.rows(
        "SELECT trial, epoch - coalesce(lag(epoch) OVER (PARTITION BY trial ORDER BY epoch), 0) AS epochs, kind "
        "FROM decisions WHERE rung IS NOT NULL ORDER BY decided_at, trial, epoch"
    )
    place, spent = {trial: at for at, trial in enumerate(trials)}, 0
    done, course = list[int](), list[tuple[int, float]]()
    for row in rows:
        spent += int_of(row, "epochs")
        if row["kind"] == "complete" and row["trial"] in place:
            done.append(place[text_of(row, "trial")])
            course.append((spent, hypervolume(shares[done], [1.0] * shares.shape[1])))
    return course
