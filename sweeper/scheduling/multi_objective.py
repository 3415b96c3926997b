"""Successive halving by several objectives, or by one under constraints.

Multi-objective ASHA (Schmucker, Donini, Zafar, Salinas & Archambeau 2021, arXiv:2106.12639): a trial that reaches a
rung is ranked with everything that reached it before (`sweeper.scheduling.ranking`) and continues if its place among
the n of them, counted from 0, is at most n / reduction_factor; the first one always continues.

Syne Tune 0.16's MOASHA follows the same rule. It departs in the order that it ranks by: its NonDominatedPriority
returns the sorted trials' indices where their ranks are meant, and its ε-net ranks where an order is meant, so what
becomes of a trial there depends on when the worst one came. With priorities that are ranks the decisions are equal
(`tests/sweeper/scheduling/test_multi_objective.py`), without standard errors and constraints and with raw distances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.journal.decision import Decision
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import Measured, RungState
from sweeper.scheduling.ranking import Constraint, Goal, Ranking, keeping, rank


@dataclass(frozen=True)
class RankedHalving(Halving):
    """Successive halving by a ranking.

    Attributes:
        goals: the objectives; the first is the scheduler's own `metric`.
        constraints: what trials must keep to.
        normalise: whether distances within a front are taken in shares of each objective's range.
    """

    goals: tuple[Goal, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    normalise: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """Everything that a ranking uses."""
        return tuple(dict.fromkeys(each.metric for each in (*self.goals, *(c.goal for c in self.constraints))))

    @property
    def constrained_metrics(self) -> tuple[str, ...]:
        """What the constraints use."""
        return tuple(dict.fromkeys(each.goal.metric for each in self.constraints))

    def keeping(self, measured: Mapping[int, Mapping[str, float]]) -> set[int]:
        """Return the trials that keep to all constraints beside each other."""
        return keeping(self.constraints, measured)

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return RankedRungs(self)


def ranked(halving: Halving, goals: tuple[Goal, ...], constraints: tuple[Constraint, ...]) -> RankedHalving:
    """Return `halving` with several objectives or constraints."""
    settings = (halving.max_epochs, halving.grace_epochs, halving.reduction_factor, halving.keep_at_least)
    return RankedHalving(halving.metric, halving.mode, *settings, goals, constraints)


class RankedRungs(RungState):
    """What every trial measured at every rung."""

    def __init__(self, halving: RankedHalving) -> None:
        """Start with the empty rungs of `halving`."""
        super().__init__(halving)
        self._halving = halving
        self._measured: dict[int, dict[int, Measured]] = {epoch: {} for epoch in halving.rungs}

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Record what a configuration measured at a rung."""
        self._measured[rung].setdefault(configuration, measured or {})

    def competitors(self, rung: int) -> int:
        """Return how many configurations have reached a rung."""
        return len(self._measured[rung])

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Stop a trial that is not among the best 1/reduction_factor."""
        halving, others = self._halving, self._measured[rung]
        if not others:
            reason = f"first trial at rung {rung}: nothing to compare with"
            return Decision(rung, "continue", reason, metric, None, 0)
        found = ranking(halving, [*others.values(), measured or {}])
        place, count = found.order.index(len(others)), len(others) + 1
        kept = halving.keep_at_least is not None and place < halving.keep_at_least
        stops = place / count > 1 / halving.reduction_factor and not kept
        reason = (
            f"number {place + 1} of {count} at rung {rung}, {self._front(found)}; "
            f"numbers up to {math.floor(count / halving.reduction_factor) + 1} continue"
        )
        if kept and place / count > 1 / halving.reduction_factor:
            reason += f", and the best {halving.keep_at_least} (keep_at_least)"
        return Decision(rung, "stop" if stops else "continue", reason, metric, None, len(others))

    def keeps_to_constraints(self, rung: int, measured: Measured | None = None) -> bool:
        """Return whether a trial that reaches a rung keeps to the constraints, beside those that reached it before."""
        found = ranking(self._halving, [*self._measured[rung].values(), measured or {}])
        return found.front[-1] > 0

    def _front(self, found: Ranking) -> str:
        """Return in words where the last of those ranked stands, and what decided that."""
        mine, halving = found.front[-1], self._halving
        if not mine:
            rules = " and ".join(each.text for each in halving.constraints)
            return f"behind all that keep to {rules or 'what is measured'}"
        if len(halving.goals) == 1:
            return f"by {halving.goals[0].metric} among those that keep to the constraints"
        size = found.front.count(mine)
        within = f", one of {size} that an ε-net orders" if size > 1 else ""
        return f"in front {mine} of {max(found.front)} by {', '.join(g.metric for g in halving.goals)}{within}"


def ranking(halving: RankedHalving, measured: list[Measured]) -> Ranking:
    """Rank trials by what they measured."""

    def column(metric: str, part: int) -> NDArray[np.float64]:
        return np.array([each.get(metric, (math.nan, 0.0))[part] for each in measured], dtype=np.float64)

    costs = np.stack([column(g.metric, 0) * (1 if g.mode == "min" else -1) for g in halving.goals], axis=1)
    errors = np.stack([column(g.metric, 1) for g in halving.goals], axis=1)
    violations = np.zeros(len(measured))
    for constraint in halving.constraints:
        violations += constraint.violations(column(constraint.goal.metric, 0))
    violations[~np.isfinite(costs).all(axis=1)] = np.inf
    return rank(costs, errors, violations, normalise=halving.normalise)
