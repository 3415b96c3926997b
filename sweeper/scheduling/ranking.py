"""Ranking trials by several objectives under constraints: non-dominated sorting, and an ε-net within each front.

Feasible trials come before those that violate a constraint, which follow by how much they do (Deb et al. 2002, A fast
and elitist multiobjective genetic algorithm: NSGA-II, section VI). Feasible ones are sorted into fronts: the first are
those that no other dominates, the second those that only the first dominate, and so on. One trial dominates another if
it is at least as good in every objective and better in one by more than their standard errors √(s₁² + s₂²), so that
replicates' luck dominates nobody; without errors this is the usual dominance. Within a front an ε-net orders them
(Clarkson 2005, Nearest-Neighbor Searching and Metric Space Dimensions, section 5; Schmucker et al. 2021,
arXiv:2106.12639, section 3): the one that is best in the first objective, then always the one that is farthest from
those before it, so that the few that continue are spread over the front. Distances are taken in shares of each
objective's range within the front, for an ECE and a trace have no common unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """What a trial must keep to.

    Attributes:
        goal: the metric, and which direction of it is good.
        within: of the best trial at the same rung, at most so far from it; `None` where `bound` is given.
        bound: the least value of a metric that should be large, the largest of one that should be small.
    """

    goal: Objective
    within: float | None = None
    bound: float | None = None

    def violations(self, values: Floats) -> Floats:
        """Return by how much each of the values at a rung violates it, 0 for none; infinite where not measured."""
        costs = np.array([self.goal.cost(value) for value in values])
        known = np.isfinite(costs)
        if self.bound is not None:
            limit = self.goal.cost(self.bound)
        else:
            limit = (costs[known].min() if known.any() else np.inf) + (self.within or 0.0)
        # A difference of two decimal fractions is off by some units in the last place: .975 is within .005 of .98.
        excess = np.where(costs - limit > 1e-12 * max(1.0, abs(limit)), costs - limit, 0.0)
        return np.where(known, excess, np.inf)

    @property
    def text(self) -> str:
        """In words, e.g. `val_accuracy within 0.005 of the best`."""
        if self.bound is not None:
            return f"{self.goal.metric} {'at least' if self.goal.mode == 'max' else 'at most'} {self.bound:g}"
        return f"{self.goal.metric} within {self.within:g} of the best"


def constraint_of(written: Mapping[str, Any]) -> Constraint:
    """Return a constraint as a resolved search space writes it, `{metric, within | min | max, mode}`."""
    metric, within, least = written["metric"], written.get("within"), written.get("min")
    larger = least is not None
    if within is not None:
        larger = larger_is_better(metric) if written.get("mode") is None else written["mode"] == "max"
    bound = written.get("max") if least is None else least
    return Constraint(Objective(metric, "max" if larger else "min"), within, bound)


def keeping(constraints: Iterable[Constraint], measured: Mapping[Trial, Mapping[str, float]]) -> set[Trial]:
    """Return the trials that keep to all constraints beside each other: trial → metric → value, means of replicates."""
    trials, violated = [*measured], np.zeros(len(measured))
    for constraint in constraints:
        values = np.array([measured[trial].get(constraint.goal.metric, np.nan) for trial in trials], dtype=np.float64)
        violated += constraint.violations(values)
    return {trial for trial, by in zip(trials, violated, strict=True) if by == 0}


@dataclass(frozen=True)
class Ranking:
    """Trials in order, best first.

    Attributes:
        order: their places in what was ranked.
        front: of each, counted from 1 in what was ranked; 0 for trials that violate a constraint.
    """

    order: list[int]
    front: list[int]


def rank(costs: Floats, errors: Floats, violations: Floats, *, normalise: bool = True) -> Ranking:
    """Rank trials.

    Args:
        costs: smaller is better [trials, objectives].
        errors: their standard errors.
        violations: of the constraints, 0 for feasible trials [trials].
        normalise: take the distances of the ε-net in shares of each objective's range.
    """
    feasible = np.flatnonzero((violations == 0) & np.isfinite(costs).all(axis=1))
    front = [0] * len(costs)
    order: list[int] = []
    if costs.shape[1] == 1:  # one objective orders its trials by itself
        order = [int(each) for each in feasible[np.argsort(costs[feasible, 0], kind="stable")]]
        for each in order:
            front[each] = 1
    else:
        remaining, number = feasible, 0
        while len(remaining):
            number += 1
            first = ~_dominated(costs[remaining], errors[remaining])
            members = remaining[first]
            for member in members:
                front[member] = number
            order += [int(members[each]) for each in epsilon_net(costs[members], normalise=normalise)]
            remaining = remaining[~first]
    left = [each for each in range(len(costs)) if not front[each]]
    return Ranking(order + sorted(left, key=lambda each: violations[each]), front)


def _dominated(costs: Floats, errors: Floats) -> NDArray[np.bool_]:
    """Return which of the trials another one of them dominates."""
    one, other = costs[:, None], costs[None]
    beyond = other - one > np.sqrt(errors[:, None] ** 2 + errors[None] ** 2)
    dominates = (one <= other).all(axis=2) & beyond.any(axis=2)
    return np.asarray(dominates.any(axis=0), dtype=np.bool_)


def epsilon_net(costs: Floats, *, normalise: bool = True) -> list[int]:
    """Return the order of points [n, objectives] by Clarkson's greedy net, from the best in the first objective on."""
    points = costs
    if normalise:
        width = np.ptp(costs, axis=0)
        points = (costs - costs.min(axis=0)) / np.where(width > 0, width, 1.0)
    order = [int(np.argmin(points[:, 0]))]
    nearest = np.linalg.norm(points - points[order[0]], axis=1)
    nearest[order[0]] = -1.0
    while len(order) < len(points):
        order.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(points - points[order[-1]], axis=1))
        nearest[order] = -1.0
    return order


def pareto_front(costs: Floats, errors: Floats) -> list[int]:
    """Return the places of the trials that no other dominates, in their order."""
    return [int(each) for each in np.flatnonzero(~_dominated(costs, errors))]


def hypervolume(costs: Floats, reference: Sequence[float]) -> float:
    """Return the volume that points [n, objectives] dominate below `reference`, by slicing along the last objective."""
    limit = [float(each) for each in reference]
    points = costs[(costs < np.array(limit)).all(axis=1)]
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(limit[0] - points[:, 0].min())
    points = points[np.argsort(points[:, -1], kind="stable")]
    edges = np.append(points[:, -1], limit[-1])
    return float(
        sum(
            (edges[each + 1] - edges[each]) * hypervolume(points[: each + 1, :-1], limit[:-1])
            for each in range(len(points))
            if edges[each + 1] > edges[each]
        )
    )
