"""The median stopping rule against its definition written out."""

import itertools
import statistics

import numpy as np
import pytest

from sweeper.journal.records import Decision
from sweeper.scheduling.base import decide
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.simulation import simulate_strata
from tests.sweeper.scheduling.journals import MEDIAN, played


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(40))
def test_decisions_equal_the_definition_written_out(seed, mode):
    rule = MedianStopping("val_nll", mode, 12, 2, 3, 1 + seed % 4)
    better, worse = (min, np.greater) if mode == "min" else (max, np.less)
    seen: dict[int, dict[int, float]] = {}
    stopped = 0
    for trial, rung, value, decision in played(rule, seed, 15):
        mine = [*seen.get(trial, {}).values(), value]
        averages = [
            sum(values[step] for step in rule.rungs if step <= rung) / sum(step <= rung for step in rule.rungs)
            for other, values in seen.items()
            if other != trial and rung in values
        ]
        assert decision.count == len(averages) + 1
        if rung == rule.max_epochs:
            assert decision.kind == "complete"
        elif len(averages) < rule.min_competitors:
            assert (decision.kind, decision.cutoff) == ("continue", None)
        else:
            median = statistics.median(averages)
            assert decision.cutoff == pytest.approx(median, abs=1e-12)
            if abs(better(mine) - median) > 1e-12:
                assert decision.kind == ("stop" if worse(better(mine), median) else "continue"), decision
            stopped += decision.kind == "stop"
        seen.setdefault(trial, {})[rung] = value
    assert stopped


def test_a_value_equal_to_the_median_continues_and_a_better_one_before_counts():
    state = MEDIAN.begin()
    for configuration, values in enumerate(((1.0, 3.0), (2.0, 4.0))):
        for rung, value in zip((2, 5), values, strict=True):
            state.add(rung, configuration, value)
    assert decide(state, 9, 2, 1.5).kind == "continue", "the median of 1 and 2"
    assert decide(state, 9, 2, 1.5001).kind == "stop"
    state.add(2, 9, 1.5)
    late = decide(state, 9, 5, 99.0)
    assert late == Decision("continue", "median", 5, 99.0, count=3, cutoff=2.5)


def test_rungs_begin_with_the_grace_epochs_and_end_with_the_last():
    assert MEDIAN.rungs == (2, 5, 8, 11, 12)
    assert MedianStopping("val_nll", "min", 27, 9).rungs == (9, 18, 27), "as far apart as the first is from the start"
    assert MedianStopping("val_nll", "min", 5, 5).rungs == (5,)
    assert MedianStopping("val_nll", "min", 5, 9).rungs == (5,)


def test_a_plan_follows_from_the_rule():
    means = simulate_strata(MEDIAN, 40, 4, 20, 0)[1].sum(axis=1).mean(axis=0)
    assert means.shape == (len(MEDIAN.rungs),) and means[0] == 40
    assert all(a >= b for a, b in itertools.pairwise(means)) and means[-1] < 30
