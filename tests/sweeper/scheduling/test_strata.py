"""Within a stratum decisions are those of one pool; between strata nothing is compared; the journal gives all again."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import Scheduler, audit, decide
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.strata import stratified, stratum_name
from tests.sweeper.records import made_record

HALVING = Halving("val_nll", "min", 27, 3, 3)
NETWORKS, LOSSES = ("mlp", "resnet8"), ("cross_entropy", "focal")
CONFIGURATIONS = [
    {"architecture": {"name": NETWORKS[i % 2]}, "loss": {"name": LOSSES[i // 2 % 2], "score": ("msp", None)[i % 2]}}
    for i in range(200)
]
WITHIN = ["architecture", "loss"]


def arrivals(seed, trials, rungs):
    """Yield (configuration, rung, value) in random order; a trial that is told it was stopped comes no more."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 12, (trials, len(rungs))) / 7  # many ties
    values = coarse if seed % 2 else rng.standard_normal((trials, len(rungs)))
    at, going = [0] * trials, list(range(trials))
    while going:
        trial = going[int(rng.integers(len(going)))]
        stopped = yield trial, rungs[at[trial]], float(values[trial, at[trial]])
        at[trial] += 1
        if stopped or at[trial] == len(rungs):
            going.remove(trial)


def play(scheduler: Scheduler, seed, trials=24):
    """Return the decision on every arrival, each with the arrival."""
    state, stream, made, stopped = scheduler.begin(), arrivals(seed, trials, scheduler.rungs), [], None
    while True:
        try:
            configuration, epoch, value = stream.send(stopped)
        except StopIteration:
            return made
        decision = decide(state, configuration, epoch, value)
        state.pool(configuration).add(epoch, configuration, value)
        made.append((configuration, epoch, value, decision))
        stopped = decision.kind == "stop"


def recorded(made, suggested=()):
    """Return a journal of suggestions and of these decisions."""
    records = [made_record(i, "suggested", 0.0, {"configuration": i, "values": v}) for i, v in enumerate(suggested)]
    for configuration, epoch, value, decision in made:
        body = {"configuration": configuration, "epoch": epoch, "objective": value, "decision": decision.to_json()}
        records.append(made_record(len(records), "report", 0.0, body))
    return records


def test_names_of_strata():
    values = {"architecture": {"name": "mlp"}, "loss": {"name": "focal", "gamma": 2.5, "score": "msp"}}
    assert stratum_name(values, ["architecture", "loss"]) == "mlp, focal"
    assert stratum_name(values, ["loss.score"]) == "score msp"
    assert stratum_name(values, ["loss.gamma", "loss.nu"]) == "gamma 2.5, no nu"


def test_2000_random_sequences_in_one_stratum_decide_as_rays_scheduler():
    same = [CONFIGURATIONS[0]] * 40
    for seed in range(2000):
        factor, mode = (2, 3, 4)[seed % 3], ("min", "max")[seed // 3 % 2]
        one_pool = Halving("val_nll", mode, 2 * factor**2, 2, factor)
        bracket = _Bracket(2, one_pool.max_epochs, factor, 0)
        for configuration, epoch, value, decision in play(stratified(one_pool, WITHIN, same), seed, 4 + seed % 9):
            if epoch == one_pool.max_epochs:
                assert decision.kind == "complete"
                continue
            score = value if mode == "max" else -value
            action = bracket.on_result(SimpleNamespace(trial_id=str(configuration)), epoch, score)
            assert (action == TrialScheduler.STOP) == (decision.kind == "stop"), (seed, decision)


@pytest.mark.parametrize("scheduler", [HALVING, MedianStopping("val_nll", "max", 12, 3)])
@pytest.mark.parametrize("seed", range(20))
def test_one_stratum_decides_as_no_strata_to_the_bit(scheduler, seed):
    made = play(stratified(scheduler, WITHIN, [CONFIGURATIONS[0]] * 24), seed)
    expected = play(scheduler, seed)
    assert {decision.stratum for *_, decision in made} == {"mlp, cross_entropy"}
    bare = [(*arrival, dataclasses.replace(d, stratum=None)) for *arrival, d in made]
    for mine, others in zip(bare, expected, strict=True):
        assert mine[3] == others[3]


@pytest.mark.parametrize("seed", range(20))
def test_each_stratum_decides_as_if_it_were_alone(seed):
    made = play(stratified(HALVING, WITHIN, CONFIGURATIONS), seed, trials=60)
    names = {stratum_name(values, WITHIN) for values in CONFIGURATIONS}
    assert {decision.stratum for *_, decision in made} == names
    for name in names:
        alone = HALVING.begin()
        for configuration, epoch, value, decision in made:
            if decision.stratum == name:
                expected = decide(alone, configuration, epoch, value)
                assert decision == dataclasses.replace(expected, stratum=name)
                alone.add(epoch, configuration, value)


@pytest.mark.parametrize("searched", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_an_audit_recomputes_every_decision_and_finds_another_stratum(seed, searched):
    known = stratified(HALVING, WITHIN, CONFIGURATIONS)
    made = play(known, seed)
    records = recorded(made, CONFIGURATIONS[:24] if searched else ())
    scheduler = dataclasses.replace(known, configurations=None) if searched else known
    assert audit(scheduler, records) == (len(made), [])
    place = len(records) - 1
    body = records[place].body
    moved = dataclasses.replace(body, decision=dataclasses.replace(body.decision, stratum="mlp, brier"))
    assert len(audit(scheduler, [*records[:place], dataclasses.replace(records[place], body=moved)])[1]) == 1


@pytest.mark.parametrize("cut", [0, 5, 17, 40])
def test_a_sweep_that_was_interrupted_decides_as_if_it_was_not(cut):
    scheduler = stratified(HALVING, WITHIN, CONFIGURATIONS)
    made = play(scheduler, 3)
    state = scheduler.begin()
    for record in recorded(made)[:cut]:
        state.apply(record)
    for configuration, epoch, value, decision in made[cut:]:
        assert decide(state, configuration, epoch, value) == decision
        state.pool(configuration).add(epoch, configuration, value)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.integers(1, 5), st.sampled_from([2, 3, 6]))
def test_the_best_k_of_a_rung_are_never_stopped(values, k, factor):
    scheduler = Halving("val_nll", "min", 27, 3, factor, keep_at_least=k)
    state, kept = scheduler.begin(), []
    for index, value in enumerate(values):
        decision = decide(state, index, 3, value)
        state.pool(index).add(3, index, value)
        kept += [index] if decision.kind == "continue" else []
    best = sorted(range(len(values)), key=lambda index: (values[index], index))[:k]
    assert set(best) <= set(kept)


def test_keep_at_least_says_why_a_trial_continues_and_stops_the_others_as_before():
    kept, plain = (
        Halving("val_nll", "min", 9, 3, 3, keep_at_least=2).begin(),
        Halving("val_nll", "min", 9, 3, 3).begin(),
    )
    for index, value in enumerate((0.1, 0.3, 0.4)):
        kept.pool(index).add(3, index, value)
        plain.pool(index).add(3, index, value)
    decision = decide(kept, 9, 3, 0.25)
    assert (decision.kind, decision.place, decision.kept_by) == ("continue", 2, "keep_at_least")
    assert decision.metric > decision.cutoff
    assert decide(kept, 9, 3, 0.35) == decide(plain, 9, 3, 0.35)
    assert decide(kept, 9, 3, 0.05) == decide(plain, 9, 3, 0.05)
