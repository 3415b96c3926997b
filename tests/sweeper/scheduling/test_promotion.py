"""Promotion follows Li et al.'s algorithm 2."""

import dataclasses

import numpy as np
import pytest

from sweeper.journal.records import Decision
from sweeper.scheduling.asha import Promotion
from sweeper.scheduling.base import decide, settled_but_for
from sweeper.scheduling.simulation import simulate_sweep
from tests.sweeper.scheduling.journals import PROMOTED_STRATA as STRATA, PROMOTION, with_pauses


def algorithm_2(values, rungs, factor, mode):
    """One worker: yield (trial, rung) as Li et al. write it, `get_job` before every job; None when nothing is left."""
    reached = [dict[int, float]() for _ in rungs]
    promoted = [set[int]() for _ in rungs]
    fresh = iter(range(len(values)))
    while True:
        for place in reversed(range(len(rungs) - 1)):
            ranked = sorted(reached[place], key=lambda t: reached[place][t] if mode == "min" else -reached[place][t])
            candidates = [t for t in ranked[: len(ranked) // factor] if t not in promoted[place]]
            if candidates:
                trial, to = candidates[0], place + 1
                promoted[place].add(trial)
                break
        else:
            trial, to = next(fresh, None), 0
            if trial is None:
                return
        yield trial, to
        reached[to][trial] = values[trial, to]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(60))
def test_one_worker_trains_what_algorithm_2_does(seed, mode):
    rng = np.random.default_rng(seed)
    factor = (2, 3, 4)[seed % 3]
    scheduler = Promotion("val_nll", mode, factor**2, 1, factor)
    values = rng.permutation(40 * 3).reshape(40, 3).astype(float)
    expected = list(algorithm_2(values, scheduler.rungs, factor, mode))
    course = simulate_sweep(scheduler, range(40), values, np.ones(40), workers=1)
    reached = {trial: max(place for t, place in expected if t == trial) for trial, _ in expected}
    assert course.reached == reached


def test_small_strata_have_a_trial_that_finishes_if_the_best_is_kept():
    records = with_pauses(STRATA, 3, trials=12)
    ended = {r.body.decision.stratum for r in records if r.body.decision.kind == "complete"}
    assert ended == {"cross_entropy", "focal"}
    kept = [r.body.decision for r in records if r.body.decision.kept_by]
    assert kept and all((d.kind, d.place, d.quota) == ("continue", 1, 0) for d in kept)


def test_the_best_kept_of_strata_train_side_by_side():
    """With a worker for each trial, what small strata keep takes no longer than one trial from start to end."""
    course = simulate_sweep(STRATA, range(12), np.random.default_rng(5).random((12, 3)), np.ones(12), workers=12)
    assert sorted(course.reached.values()).count(2) == 2, "one of each stratum comes to its end"
    assert course.seconds == 9


def test_several_kept_of_one_rung_train_side_by_side_and_wait_for_no_trial_beyond_it():
    state = dataclasses.replace(PROMOTION, keep_at_least=2).begin()
    for index, value in enumerate((0.5, 0.4)):
        state.add(1, index, value)
    under_way = [(2, 0)]
    settled = settled_but_for(state, lambda: under_way)
    assert state.promotion(settled) is None, "one that is on its way to the rung may be better than both"
    state.add(1, 2, 0.6)
    under_way.clear()
    for expected in (1, 0):
        configuration, decision = state.promotion(settled)
        assert configuration == expected
        state.decided(configuration, decision)
        under_way.append((configuration, 1))
    assert state.promotion(settled) is None, "the best two of the rung have left it"


def test_decisions_have_place_and_quota():
    state = PROMOTION.begin()
    first = decide(state, 0, 1, 0.5)
    assert first == Decision("pause", "quota", 1, 0.5, place=1, count=1, quota=0)
    for index, value in enumerate((0.5, 0.4, 0.3)):
        state.add(1, index, value)
    configuration, decision = state.promotion()
    assert (configuration, decision) == (2, Decision("continue", "quota", 1, 0.3, place=1, count=3, quota=1))
    assert state.never_promoted(1, 0) == Decision("stop", "quota", 1, 0.5, place=3, count=3, quota=1)
