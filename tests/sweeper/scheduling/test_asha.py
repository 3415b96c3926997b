"""Decisions equal those of Ray Tune's own ASHA, and can be recomputed from the journal at any time."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from sweeper.journal.records import Decision, Record, Reported
from sweeper.scheduling.asha import Halving, Rung, Rungs
from sweeper.scheduling.base import audit, decide, decide_on
from sweeper.scheduling.run_to_end import RunToEnd
from tests.sweeper.records import made_record, trial_report
from tests.sweeper.simulated_halving import simulate

HALVING = Halving("val_nll", "min", 27, 3, 3)


def _stream(seed, schedule, trials):
    """Reports (configuration, rung, value) in a random order of arrival; values on a coarse grid, so that many tie."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 12, (trials, len(schedule.rungs))) / 7 - 0.5
    if seed % 2:
        values = rng.standard_normal(values.shape)
    at = [0] * trials
    while any(at[t] < len(schedule.rungs) for t in range(trials)):
        trial = rng.choice([t for t in range(trials) if at[t] < len(schedule.rungs)])
        stopped = yield int(trial), schedule.rungs[at[trial]], float(values[trial, at[trial]])
        at[trial] = len(schedule.rungs) if stopped else at[trial] + 1


def _play(schedule, stream, rungs=None):
    """Decide on every report of a stream and add it to the rungs; a stopped trial reports no more."""
    rungs = rungs if rungs is not None else Rungs(schedule)
    made, stopped = [], None
    while True:
        try:
            configuration, epoch, value = stream.send(stopped)
        except StopIteration:
            return made
        decision = decide(rungs, configuration, epoch, value)
        rungs.add(epoch, configuration, value)
        made.append((configuration, epoch, value, decision))
        stopped = decision.kind == "stop"


def _record(sequence, configuration, epoch, value, decision):
    body = {"configuration": configuration, "epoch": epoch, "objective": value, "decision": decision.to_json()}
    return made_record(sequence, "report", float(sequence), body)


def _records(schedule, seed, trials=25):
    return [_record(i, *report) for i, report in enumerate(_play(schedule, _stream(seed, schedule, trials)))]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(60))
def test_decisions_equal_ray_tunes(seed, mode):
    factor = (3, 2, 4, 3, 5)[seed % 5]
    schedule = Halving("val_nll", mode, factor**3 * 2, 2, factor)
    bracket = _Bracket(2, schedule.max_epochs, factor, 0)
    assert [int(milestone) for milestone, _ in reversed(bracket._rungs)][: len(schedule.rungs)] == list(schedule.rungs)
    for configuration, epoch, value, decision in _play(schedule, _stream(seed, schedule, 12 + seed)):
        if epoch == schedule.max_epochs:
            assert decision.kind == "complete"
            continue
        score = value if mode == "max" else -value
        action = bracket.on_result(SimpleNamespace(trial_id=str(configuration)), epoch, score)
        assert (action == TrialScheduler.STOP) == (decision.kind == "stop"), decision


@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=60),
    st.sampled_from([2, 2.5, 3, 4, 5, 6, 7, 10]),
)
def test_quantile_equals_numpys_percentile_to_the_last_bit(values, factor):
    rung = Rung()
    for index, value in enumerate(values):
        rung.add(index, value)
    share = Halving("val_nll", "min", 27, 1, factor).quantile
    assert rung.quantile(share) == np.percentile(values, (1 - 1 / factor) * 100)


@pytest.mark.parametrize(
    ("maximum", "grace", "factor", "rungs"),
    [
        (27, 3, 3, (3, 9, 27)),
        (28, 3, 3, (3, 9, 27, 28)),
        (26, 3, 3, (3, 9, 26)),
        (10, 1, 3, (1, 3, 9, 10)),
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
    rungs = Rungs(dataclasses.replace(HALVING, mode=mode))
    for rung in (3, 9):
        decision = decide(rungs, 0, rung, 1e9)
        assert (decision.kind, decision.rule, decision.cutoff, decision.count) == ("continue", "first", None, 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("epoch", [1, 3, 9, 27])
def test_a_value_that_is_not_finite_fails_at_once(value, epoch):
    decision = decide(Rungs(HALVING), 0, epoch, value)
    assert decision == Decision("fail", "non_finite", epoch if epoch in HALVING.rungs else None)


def test_an_objective_that_is_not_measured_is_no_fault_between_rungs():
    assert decide(Rungs(HALVING), 0, 4, None) is None
    assert decide(Rungs(HALVING), 0, 9, None).kind == "fail"


def test_no_decision_between_rungs():
    assert decide(Rungs(HALVING), 0, 4, 0.3) is None


def test_a_decision_has_value_rung_place_and_cutoff():
    rungs = Rungs(HALVING)
    for index, value in enumerate((0.1, 0.2, 0.3)):
        rungs.add(3, index, value)
    decision = decide(rungs, 9, 3, 0.25)
    assert decision == Decision("stop", "cutoff", 3, 0.25, place=3, count=4, cutoff=pytest.approx(1 / 6))
    assert decide(rungs, 9, 3, 0.1).kind == "continue"


def test_decide_changes_nothing():
    rungs = Rungs(HALVING)
    rungs.add(3, 0, 0.2)
    first = decide(rungs, 1, 3, 0.5)
    assert decide(rungs, 1, 3, 0.5) == first
    assert len(rungs.by_epoch[3]) == 1


def test_a_resumed_configuration_cannot_compete_with_itself():
    rungs = Rungs(HALVING)
    rungs.add(3, 7, 0.5)
    rungs.add(3, 7, 0.1)
    assert rungs.by_epoch[3].keys == {7: (0.5, 0)}
    assert len(rungs.by_epoch[3]) == 1
    assert decide(rungs, 8, 3, 0.4).count == 2


@pytest.mark.parametrize("seed", range(20))
def test_replay_gives_the_same_rungs_and_decisions_wherever_it_was_interrupted(seed):
    schedule = dataclasses.replace(HALVING, mode=("min", "max")[seed % 2])
    records = _records(schedule, seed)
    for cut in range(len(records) + 1):
        rungs = Rungs(schedule)
        for record in records[:cut]:
            rungs.apply(record)
        for record in records[cut:]:
            report = record.body.report
            assert decide(rungs, report.configuration, report.epoch, report.objective) == record.body.decision
            rungs.apply(record)


def test_replaying_twice_changes_nothing():
    records = _records(HALVING, 3)
    once, twice = Rungs(HALVING), Rungs(HALVING)
    for record in records:
        once.apply(record)
    for record in [*records, *records]:
        twice.apply(record)
    assert {e: r.keys for e, r in once.by_epoch.items()} == {e: r.keys for e, r in twice.by_epoch.items()}


@pytest.mark.parametrize("seed", range(10))
def test_audit_finds_every_tampered_decision(seed):
    records = _records(HALVING, seed)
    assert audit(HALVING, records) == (len(records), [])
    rng = np.random.default_rng(seed)
    for field, change in {
        "kind": lambda v: "stop" if v == "continue" else "continue",
        "metric": lambda v: v + 1e-9,
        "cutoff": lambda v: 0.25 if v is None else np.nextafter(v, 9e9),
        "count": lambda v: v + 1,
        "place": lambda v: (v or 0) + 1,
        "rung": lambda v: v + 1,
        "rule": lambda v: v + "_",
        "kept_by": lambda v: "keep_at_least",
    }.items():
        place = int(rng.integers(len(records)))
        body = records[place].body
        decision = dataclasses.replace(body.decision, **{field: change(getattr(body.decision, field))})
        tampered = dataclasses.replace(records[place], body=dataclasses.replace(body, decision=decision))
        _, differences = audit(HALVING, [*records[:place], tampered])
        assert len(differences) == 1 and differences[0].startswith(f"record {place}: "), field


def test_audit_finds_a_decision_that_was_not_made():
    records = _records(HALVING, 1)
    skipped = dataclasses.replace(records[4], body=dataclasses.replace(records[4].body, decision=None))
    assert len(audit(HALVING, [*records[:4], skipped])[1]) == 1


def test_audit_takes_a_failures_rule_on_trust_but_not_its_kind():
    failed = decide(Rungs(HALVING), 0, 2, math.nan)
    named = dataclasses.replace(failed, rule="timed_out")
    assert audit(HALVING, [_record(0, 0, 2, math.nan, named)]) == (1, [])
    went_on = Decision("fail", "non_finite", 3)
    assert len(audit(HALVING, [_record(0, 0, 3, 0.5, went_on)])[1]) == 1


def test_five_thousand_simulated_trials():
    reached = simulate(HALVING, 5_000, workers=64, seed=1)
    assert reached[3] == 5_000
    assert 0.3 <= reached[9] / reached[3] <= 0.5
    assert 0.3 <= reached[27] / reached[9] <= 0.5


@pytest.mark.benchmark
def test_one_hundred_thousand_simulated_trials():
    reached = simulate(HALVING, 100_000, workers=256, seed=1)
    assert reached[3] == 100_000
    assert 0.3 <= reached[9] / reached[3] <= 0.5
    assert 0.3 <= reached[27] / reached[9] <= 0.5


def test_a_decision_counts_the_replicates_that_its_mean_leaves_out():
    rungs = Rungs(HALVING)
    rungs.add(3, 1, 0.5)
    report = trial_report(
        configuration=0, epoch=3, objective=0.4, replicate_errors={"10": {"kind": "error"}, "2": {"kind": "error"}}
    )
    decision = decide_on(rungs, report)
    plain = decide(rungs, 0, 3, 0.4)
    assert decision == dataclasses.replace(plain, left_out=2)
    first = _record(0, 1, 3, 0.5, decide(Rungs(HALVING), 1, 3, 0.5))
    records = [first, Record(1, 0.0, Reported(report, 1, "running", decision))]
    assert audit(HALVING, records) == (2, [])
    unmarked = dataclasses.replace(records[1], body=Reported(report, 1, "running", plain))
    assert len(audit(HALVING, [records[0], unmarked])[1]) == 1, "a configuration never competes unmarked"
    sound = dataclasses.replace(report, replicate_errors={})
    assert decide_on(rungs, sound) == plain
    assert decide_on(rungs, dataclasses.replace(report, objective=math.nan)) == decide(rungs, 0, 3, math.nan)
