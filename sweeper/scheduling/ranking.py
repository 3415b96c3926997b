"""Ranking trials by several objectives under constraints: non-dominated sorting, and an ε-net within each front.

Feasible trials come first. Trials that violate a constraint follow, in the order of their violation (Deb et al. 2002, A
fast and elitist multiobjective genetic algorithm: NSGA-II, section VI). Feasible trials are sorted into fronts: no
trial dominates a member of the first front, only the first front dominates members of the second, and so on. One trial
dominates another if it is at least as good in every objective, and better in one by more than their standard error
√(s₁² + s₂²). So lucky seeds do not dominate; without errors this is the usual dominance. An ε-net orders the trials of
a front (Clarkson 2005, Nearest-Neighbor Searching and Metric Space Dimensions, section 5; Schmucker et al. 2021,
arXiv:2106.12639, section 3). The first is the best trial in the first objective. Each next trial is the one farthest
from the trials already taken, so the few that continue are spread over the front. Distances are shares of each
objective's range within the front, because an ECE and a trace have no common unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sweeper.journal.best import Objective
from trainables.metrics.base import larger_is_better

Floats = NDArray[np.float64]
Trial = TypeVar("Trial")


@dataclass(frozen=True)
class Constraint:
    """A constraint that trials must satisfy.

    Attributes:
        goal: the metric and its better direction.
        within: largest distance from the best trial at the same rung; `None` if `bound` is given.
        bound: smallest allowed value if the metric should be large, largest allowed value if it should be small.

    Example:
        >>> Constraint(Objective("val_accuracy", "max"), within=0.01).violations(np.array([0.95, 0.92, np.nan]))
        array([0.  , 0.02,  inf])
    """

    goal: Objective
    within: float | None = None
    bound: float | None = None

    def violations(self, values: Floats) -> Floats:
        """Return the violation of each value at a rung: 0 if satisfied, infinite if not measured."""
        costs = np.array([self.goal.cost(value) for value in values])
        known = np.isfinite(costs)
        if self.bound is not None:
            limit = self.goal.cost(self.bound)
        else:
            limit = (costs[known].min() if known.any() else np.inf) + (self.within or 0.0)
        # Rounding errors are tolerated: .975 must count as within .005 of .98.
        excess = np.where(costs - limit > 1e-12 * max(1.0, abs(limit)), costs - limit, 0.0)
        return np.where(known, excess, np.inf)

    @property
    def text(self) -> str:
        """The constraint in words, e.g. `val_accuracy within 0.005 of the best`."""
        if self.bound is not None:
            return f"{self.goal.metric} {'at least' if self.goal.mode == 'max' else 'at most'} {self.bound:g}"
        return f"{self.goal.metric} within {self.within:g} of the best"


def constraint_of(written: Mapping[str, Any]) -> Constraint:
    """Build a constraint from its form in a resolved search space, `{metric, within | min | max, mode}`.

    Example:
        >>> constraint_of({"metric": "val_ece", "max": 0.05}).text
        'val_ece at most 0.05'
    """
    metric, within, least = written["metric"], written.get("within"), written.get("min")
    # `min` and `max` imply the direction. `within` needs `mode`, or the direction that the metric declares.
    larger = least is not None
    if within is not None:
        larger = larger_is_better(metric) if written.get("mode") is None else written["mode"] == "max"
    bound = written.get("max") if least is None else least
    return Constraint(Objective(metric, "max" if larger else "min"), within, bound)


def keeping(constraints: Iterable[Constraint], measured: Mapping[Trial, Mapping[str, float]]) -> set[Trial]:
    """Return the trials that satisfy all constraints, given trial → metric → mean over replicates.

    The trials are judged together: `within` refers to the best of them.

    Example:
        >>> constraint = constraint_of({"metric": "val_accuracy", "within": 0.01})
        >>> keeping([constraint], {"a": {"val_accuracy": 0.95}, "b": {"val_accuracy": 0.90}})
        {'a'}
    """
    trials, violated = [*measured], np.zeros(len(measured))
    for constraint in constraints:
        values = np.array([measured[trial].get(constraint.goal.metric, np.nan) for trial in trials], dtype=np.float64)
        violated += constraint.violations(values)
    return {trial for trial, by in zip(trials, violated, strict=True) if by == 0}


@dataclass(frozen=True)
class Ranking:
    """Trials in order, best first.

    Attributes:
        order: indices of the trials, best first.
        front: front number of each trial, from 1; 0 for a trial that violates a constraint.
    """

    order: list[int]
    front: list[int]


def rank(costs: Floats, errors: Floats, violations: Floats, *, normalise: bool = True) -> Ranking:
    """Rank trials by feasibility, front and ε-net.

    Args:
        costs: objectives, smaller is better [trials, objectives].
        errors: standard errors of the costs [trials, objectives].
        violations: sum of constraint violations, 0 for feasible trials [trials].
        normalise: whether distances of the ε-net are shares of each objective's range.

    Example:
        >>> costs = np.array([[1.0, 4.0], [2.0, 2.0], [3.0, 3.0]])
        >>> rank(costs, np.zeros_like(costs), np.array([0.0, 0.0, 0.0]))
        Ranking(order=[0, 1, 2], front=[1, 1, 2])
    """
    feasible = np.flatnonzero((violations == 0) & np.isfinite(costs).all(axis=1))
    front = [0] * len(costs)
    order: list[int] = []
    # A single objective orders all trials, so fronts by standard errors would only lose information.
    if costs.shape[1] == 1:
        # The sort is stable, so the earlier of two equal trials comes first.
        order = feasible[np.argsort(costs[feasible, 0], kind="stable")].tolist()
        for trial in order:
            front[trial] = 1
    else:
        remaining, number = feasible, 0
        while len(remaining):
            number += 1
            first = ~_dominated(costs[remaining], errors[remaining])
            members = remaining[first]
            for member in members:
                front[member] = number
            order += members[epsilon_net(costs[members], normalise=normalise)].tolist()
            remaining = remaining[~first]
    infeasible = [trial for trial in range(len(costs)) if not front[trial]]
    return Ranking(order + sorted(infeasible, key=lambda trial: violations[trial]), front)


def _dominated(costs: Floats, errors: Floats) -> NDArray[np.bool_]:
    """Return whether some other trial dominates each trial, bool [trials]."""
    # The array [n, n, objectives] fits in memory: a rung has at most a few thousand trials and few objectives.
    one, other = costs[:, None], costs[None]
    beyond = other - one > np.sqrt(errors[:, None] ** 2 + errors[None] ** 2)
    dominates = (one <= other).all(axis=2) & beyond.any(axis=2)
    return np.asarray(dominates.any(axis=0), dtype=np.bool_)


def epsilon_net(costs: Floats, *, normalise: bool = True) -> list[int]:
    """Order points [n, objectives] by Clarkson's greedy net, beginning with the best in the first objective.

    Example:
        >>> epsilon_net(np.array([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0]]))
        [0, 2, 1]
    """
    points = costs
    if normalise:
        width = np.ptp(costs, axis=0)
        # If all points are equal in an objective, its width is 0, and dividing by it would give NaN.
        points = (costs - costs.min(axis=0)) / np.where(width > 0, width, 1.0)
    order = [int(np.argmin(points[:, 0]))]
    nearest = np.linalg.norm(points - points[order[0]], axis=1)
    # −1 marks a point that is taken. Its duplicates have distance 0 and must still be taken, once each.
    nearest[order[0]] = -1.0
    while len(order) < len(points):
        order.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[order[-1]], axis=1))
        nearest[order] = -1.0
    return order


def pareto_front(costs: Floats, errors: Floats) -> list[int]:
    """Return the indices of the trials that no other trial dominates, rising.

    Args:
        costs: objectives, smaller is better [trials, objectives].
        errors: standard errors of the costs [trials, objectives].

    Example:
        >>> costs = np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
        >>> pareto_front(costs, np.zeros_like(costs))
        [0, 1]
    """
    return [*map(int, np.flatnonzero(~_dominated(costs, errors)))]
