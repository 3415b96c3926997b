"""Several objectives: decisions equal Syne Tune's MOASHA where definitions coincide."""

import dataclasses

import numpy as np
import pytest

from sweeper.journal.best import Objective
from sweeper.journal.records import Decision
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import decide
from sweeper.scheduling.ranking import Constraint
from tests.sweeper.scheduling.journals import OBJECTIVES

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
