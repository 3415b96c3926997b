"""Intervals of single means."""

import numpy as np
import pytest
from scipy import stats

from sweeper.judging.means import means
from sweeper.judging.question import Data, Question


def test_one_candidate_has_students_interval_and_a_chosen_one_a_wider_side() -> None:
    values = np.array([0.90, 0.93, 0.915, 0.921])
    question, data = Question(["a"], "accuracy", "max", level=0.95), Data({"a": dict(enumerate(values.tolist()))})
    mean, chosen = means(question, data)["a"], means(question, data, chosen_from=20)["a"]
    assert (mean.low, mean.high) == pytest.approx(stats.t.interval(0.95, 3, values.mean(), stats.sem(values)), rel=0.01)
    assert chosen.high == mean.high and chosen.low < mean.low  # luck made the mean too high
    assert np.isnan(means(question, Data({"a": {0: 0.9}}))["a"].low)


def test_intervals_cover_means_of_unequal_losses() -> None:
    random, inside = np.random.default_rng(0), []
    for _ in range(60):
        spread = 0.1 * np.exp(0.5 * random.standard_normal((6, 1)))
        table = np.exp(spread * random.standard_normal((6, 4)))
        data = Data({str(at): dict(enumerate(row.tolist())) for at, row in enumerate(table)})
        known = means(Question([*data.values], "nll", relative=True, level=0.95), data)
        inside += [known[str(at)].low <= np.exp(spread[at, 0] ** 2 / 2) <= known[str(at)].high for at in range(6)]
    assert np.mean(inside) >= 0.9


def test_values_of_both_signs_have_no_relative_interval() -> None:
    values = {"trace": {0: -1.0, 1: 2.0, 2: -0.5}}
    relative, plain = (
        means(Question(["trace"], "trace", relative=of, level=0.95), Data(values)) for of in (True, False)
    )
    assert relative == plain and relative["trace"].low < 0
