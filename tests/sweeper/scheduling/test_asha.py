"""Decisions equal those of Ray Tune's own ASHA; promotion follows Li et al.'s algorithm 2."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from sweeper.journal.records import Decision
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import decide, settled_but_for
from sweeper.scheduling.run_to_end import RunToEnd
from sweeper.scheduling.simulation import simulate_sweep
from tests.sweeper.scheduling.journals import HALVING, PROMOTED_STRATA as STRATA, PROMOTION, played, with_pauses


def test_random_sequences_decide_as_rays_scheduler():
    for seed in range(400):
        factor, mode = (2, 3, 4, 5)[seed % 4], ("min", "max")[seed // 4 % 2]
        halving = Halving("val_nll", mode, 2 * factor**2, 2, factor)
        bracket = _Bracket(2, halving.max_epochs, factor, 0)
        assert [int(epoch) for epoch, _ in reversed(bracket._rungs)][: len(halving.rungs)] == list(halving.rungs)
        for configuration, epoch, value, decision in played(halving, seed, 4 + seed % 29):
            if epoch == halving.max_epochs:
                assert decision.kind == "complete"
                continue
            score = value if mode == "max" else -value
            action = bracket.on_result(SimpleNamespace(trial_id=str(configuration)), epoch, score)
            assert (action == TrialScheduler.STOP) == (decision.kind == "stop"), (seed, decision)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=60),
    st.sampled_from([2, 2.5, 3, 4, 5, 6, 7, 10]),
)
def test_quantile_equals_numpys_percentile_to_the_last_bit(values, factor):
    rungs = Halving("val_accuracy", "max", 27, 1, factor).begin()
    for index, value in enumerate(values):
        rungs.add(1, index, value)
    assert rungs.compare(1, len(values), 0.0).cutoff == np.percentile(values, (1 - 1 / factor) * 100)


@pytest.mark.parametrize(
    ("maximum", "grace", "factor", "rungs"),
    [
        (27, 3, 3, (3, 9, 27)),
        (28, 3, 3, (3, 9, 27, 28)),
        (26, 3, 3, (3, 9, 26)),
        (100, 7, 2, (7, 14, 28, 56, 100)),
        (5, 5, 3, (5,)),
        (5, 9, 3, (5,)),
        (243, 1, 3, (1, 3, 9, 27, 81, 243)),
        (1000, 1, 10, (1, 10, 100, 1000)),
    ],
)
def test_rungs_are_whole_epochs_ending_at_the_last(maximum, grace, factor, rungs):
    assert Halving("val_nll", "min", maximum, grace, factor).rungs == rungs


def test_without_a_scheduler_there_is_one_rung_and_no_stop():
    schedule = RunToEnd("val_nll", "min", 27)
    assert schedule.rungs == (27,)
    rungs = schedule.begin()
    rungs.add(27, 0, 0.1)
    assert decide(rungs, 1, 9, 99.0) is None
    assert decide(rungs, 1, 27, 99.0).kind == "complete"


@pytest.mark.parametrize("mode", ["min", "max"])
def test_first_trial_at_each_rung_continues(mode):
    rungs = dataclasses.replace(HALVING, mode=mode).begin()
    for rung in (3, 9):
        decision = decide(rungs, 0, rung, 1e9)
        assert (decision.kind, decision.rule, decision.cutoff, decision.count) == ("continue", "first", None, 1)


def test_a_decision_has_value_rung_place_and_cutoff():
    rungs = HALVING.begin()
    for index, value in enumerate((0.1, 0.2, 0.3)):
        rungs.add(3, index, value)
    decision = decide(rungs, 9, 3, 0.25)
    assert decision == Decision("stop", "cutoff", 3, 0.25, place=3, count=4, cutoff=pytest.approx(1 / 6))
    assert decide(rungs, 9, 3, 0.1).kind == "continue"


def test_a_resumed_configuration_cannot_compete_with_itself():
    rungs = HALVING.begin()
    rungs.add(3, 7, 0.5)
    rungs.add(3, 7, 0.1)
    assert rungs.by_epoch[3].keys == {7: (0.5, 0)}
    assert decide(rungs, 8, 3, 0.4).count == 2


def test_of_five_thousand_trials_a_third_or_more_goes_on_from_each_rung():
    rng, trials = np.random.default_rng(1), 5_000
    values = rng.lognormal(-1, 0.5, (trials, 1)) + rng.normal(0, 0.02, (trials, len(HALVING.rungs)))
    reached = simulate_sweep(HALVING, range(trials), values, rng.lognormal(0, 0.3, trials), workers=64).reached
    first, second, third = (sum(place >= at for place in reached.values()) for at in range(3))
    assert first == trials
    assert 0.3 <= second / first <= 0.5 and 0.3 <= third / second <= 0.5


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.integers(1, 5), st.sampled_from([2, 3, 6]))
def test_the_best_k_of_a_rung_are_never_stopped(values, k, factor):
    state, kept = Halving("val_nll", "min", 27, 3, factor, keep_at_least=k).begin(), []
    for index, value in enumerate(values):
        decision = decide(state, index, 3, value)
        state.add(3, index, value)
        kept += [index] if decision.kind == "continue" else []
    best = sorted(range(len(values)), key=lambda index: (values[index], index))[:k]
    assert set(best) <= set(kept)


def test_keep_at_least_says_why_a_trial_continues_and_stops_the_others_as_before():
    plain = Halving("val_nll", "min", 9, 3, 3)
    kept, plain = dataclasses.replace(plain, keep_at_least=2).begin(), plain.begin()
    for index, value in enumerate((0.1, 0.3, 0.4)):
        kept.add(3, index, value)
        plain.add(3, index, value)
    decision = decide(kept, 9, 3, 0.25)
    assert (decision.kind, decision.place, decision.kept_by) == ("continue", 2, "keep_at_least")
    assert decision.metric > decision.cutoff
    assert decide(kept, 9, 3, 0.35) == decide(plain, 9, 3, 0.35)
    assert decide(kept, 9, 3, 0.05) == decide(plain, 9, 3, 0.05)


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
