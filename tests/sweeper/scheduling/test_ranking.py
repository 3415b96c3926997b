"""Non-dominated sorting beyond standard errors, ε-nets and constraints, against plain loops."""

import numpy as np
import pytest

from sweeper.journal.best import Objective
from sweeper.scheduling.ranking import Constraint, epsilon_net, pareto_front, rank

NOTHING = np.zeros


def plain_fronts(costs, errors):
    """Peel fronts off, pair by pair."""
    left, fronts = list(range(len(costs))), []

    def dominates(a, b):
        better = [costs[b][k] - costs[a][k] > np.hypot(errors[a][k], errors[b][k]) for k in range(len(costs[a]))]
        return all(costs[a][k] <= costs[b][k] for k in range(len(costs[a]))) and any(better)

    while left:
        fronts.append([each for each in left if not any(dominates(other, each) for other in left)])
        left = [each for each in left if each not in fronts[-1]]
    return fronts


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("objectives", [2, 3])
def test_fronts_are_those_of_a_plain_loop(seed, objectives):
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 6, (20, objectives)) / 5
    errors = rng.random(costs.shape) * (0.3 if seed % 2 else 0)
    found, fronts = rank(costs, errors, np.zeros(20)), plain_fronts(costs.tolist(), errors.tolist())
    assert [found.front[each] for each in range(20)] == [
        next(n for n, front in enumerate(fronts, 1) if each in front) for each in range(20)
    ]
    assert sorted(found.order) == list(range(20))
    assert [found.front[each] for each in found.order] == sorted(found.front)
    assert pareto_front(costs, errors) == fronts[0]


def test_what_lies_within_the_errors_dominates_nothing():
    costs, errors = np.array([[0.10, 0.20], [0.11, 0.21]]), np.full((2, 2), 0.01)
    assert rank(costs, np.zeros((2, 2)), np.zeros(2)).front == [1, 2]
    assert rank(costs, errors, np.zeros(2)).front == [1, 1]


def test_an_epsilon_net_begins_with_the_best_and_goes_to_the_farthest():
    points = np.array([[0.0, 1.0], [0.1, 0.9], [0.5, 0.5], [1.0, 0.0]])
    assert epsilon_net(points) == [0, 3, 2, 1]
    assert epsilon_net(points * [1, 1000]) == [0, 3, 2, 1], "units change nothing"
    assert epsilon_net(np.zeros((3, 2))) == [0, 1, 2]


def test_feasible_trials_come_first_and_the_others_by_what_they_violate():
    costs = np.array([[0.0], [0.3], [0.1], [0.2]])
    found = rank(costs, NOTHING((4, 1)), np.array([0.5, 0.0, 0.1, 0.0]))
    assert (found.order, found.front) == ([3, 1, 2, 0], [0, 1, 0, 1])


def test_what_was_not_measured_is_the_last():
    found = rank(np.array([[np.nan, 0.1], [0.5, 0.5]]), NOTHING((2, 2)), np.array([np.inf, 0.0]))
    assert (found.order, found.front) == ([1, 0], [0, 1])


def test_constraints_relative_to_the_best_and_absolute():
    accuracy = np.array([0.98, 0.975, 0.9, np.nan])
    within = Constraint(Objective("val_accuracy", "max"), within=0.005)
    assert within.violations(accuracy) == pytest.approx([0, 0, 0.075, np.inf])
    assert within.text == "val_accuracy within 0.005 of the best"
    least = Constraint(Objective("val_accuracy", "max"), bound=0.95)
    assert least.violations(accuracy) == pytest.approx([0, 0, 0.05, np.inf])
    assert least.text == "val_accuracy at least 0.95"
    assert Constraint(Objective("val_ece"), bound=0.1).violations(np.array([0.3, 0.05])) == pytest.approx([0.2, 0])
