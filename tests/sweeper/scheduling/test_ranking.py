"""Non-dominated sorting beyond standard errors, ε-nets and constraints, against plain loops and Syne Tune's MOASHA."""

import dataclasses

import numpy as np
import pytest

from sweeper.journal.best import Objective
from sweeper.journal.records import Decision
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import decide
from sweeper.scheduling.ranking import Constraint, epsilon_net, pareto_front, rank
from tests.sweeper.scheduling.journals import OBJECTIVES

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


HALVING = Halving("val_ece", "min", 18, 2, 3)


def measured(values):
    return {goal.metric: (float(value), 0.0) for goal, value in zip(OBJECTIVES, values, strict=True)}


def rank_priority(objectives):
    """What Syne Tune's NonDominatedPriority is meant to be: each trial's place, from Syne Tune's own parts."""
    parts = pytest.importorskip("syne_tune.optimizer.schedulers.multiobjective.non_dominated_priority")
    places, left, count = np.empty(len(objectives), dtype=int), np.arange(len(objectives)), 0
    while len(left):
        first = parts.pareto_efficient(objectives[left])
        members = left[first]
        places[members] = count + parts.compute_epsilon_net(objectives[members], dim=0)
        count, left = count + len(members), left[~first]
    return places


def test_2000_random_sequences_decide_as_syne_tunes_moasha():
    asha = pytest.importorskip("syne_tune.optimizer.schedulers.asha")
    compared = 0
    for seed in range(2000):
        factor = (2, 3, 4)[seed % 3]
        one = Halving("val_ece", "min", 2 * factor**2, 2, factor)
        halving = dataclasses.replace(one.comparing(OBJECTIVES, ()), normalise=False)
        bracket, state = asha.Bracket(2, one.max_epochs, factor, 0, rank_priority), halving.begin()
        rng, trials = np.random.default_rng(seed), 4 + seed % 9
        shape = (trials, len(halving.rungs), 2)
        drawn = rng.integers(0, 8, shape) / 7 if seed % 2 else rng.random(shape)
        at, going = [0] * trials, [*range(trials)]
        while going:
            trial = int(rng.choice(going))
            epoch, values = halving.rungs[at[trial]], drawn[trial, at[trial]]
            decision = decide(state, trial, epoch, values[0], measured(values))
            state.add(epoch, trial, values[0], measured(values))
            at[trial] += 1
            if decision.kind != "continue":
                going.remove(trial)
            if epoch < halving.max_epochs:
                action = bracket.on_result(trial, epoch, dict(enumerate(values)))
                assert (action == "STOP") == (decision.kind == "stop"), (seed, decision)
                compared += 1
    assert compared > 20_000


def test_a_decision_has_place_quota_and_a_broken_constraint():
    constraint = Constraint(Objective("val_accuracy", "max"), within=0.1)
    state = HALVING.comparing(OBJECTIVES, (constraint,)).begin()
    for index, values in enumerate([(0.1, 0.5, 0.9), (0.5, 0.1, 0.9), (0.3, 0.3, 0.9)]):
        names = ("val_ece", "val_nll", "val_accuracy")
        state.add(2, index, values[0], {name: (value, 0.0) for name, value in zip(names, values, strict=True)})
    good = {"val_ece": (0.2, 0.0), "val_nll": (0.2, 0.0), "val_accuracy": (0.9, 0.0)}
    decision = decide(state, 9, 2, 0.2, good)
    assert decision == Decision("stop", "ranking", 2, 0.2, place=3, count=4, quota=2)
    majority = {"val_ece": (0.0, 0.0), "val_nll": (0.0, 0.0), "val_accuracy": (0.3, 0.0)}
    decision = decide(state, 9, 2, 0.0, majority)
    assert decision == Decision("stop", "constraint", 2, 0.0, place=4, count=4, quota=2)


def test_a_constraint_guards_a_single_objective_at_rungs_and_at_the_end():
    halving = HALVING.comparing((Objective("val_ece"),), (Constraint(Objective("val_accuracy", "max"), bound=0.8),))
    state = halving.begin()
    for index in range(3):
        for epoch in halving.rungs:
            state.add(epoch, index, 0.1 + index, {"val_ece": (0.1 + index, 0.0), "val_accuracy": (0.95, 0.0)})
    crowned = {"val_ece": (0.0, 0.0), "val_accuracy": (0.6, 0.0)}
    assert decide(state, 9, 2, 0.0, crowned).kind == "stop"
    ended = decide(state, 9, 18, 0.0, crowned)
    assert (ended.kind, ended.rule) == ("complete", "constraint")
    kept = decide(state, 9, 18, 0.2, {"val_ece": (0.2, 0.0), "val_accuracy": (0.85, 0.0)})
    assert kept.kind == "complete" and kept.rule != "constraint"


def test_the_best_k_continue_in_any_order():
    halving = dataclasses.replace(HALVING, keep_at_least=2).comparing((Objective("val_ece"),), ())
    state = halving.begin()
    kept = []
    for index, value in enumerate(np.random.default_rng(0).permutation(20)):
        decision = decide(state, index, 2, float(value), {"val_ece": (float(value), 0.0)})
        state.add(2, index, float(value), {"val_ece": (float(value), 0.0)})
        kept += [value] if decision.kind == "continue" else []
    assert {0, 1} <= set(kept)
