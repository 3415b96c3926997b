"""Predicted chances against what other seeds and orders did, on drawn sweeps; cases with one answer."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from sweeper.scheduling.asha import Halving
from sweeper.scheduling.simulation import FEWEST_DRAWS, MOST_VISITS, chances, other_seeds, simulate_sweep
from sweeper.space.spec import SchedulerSettings

HALVING = Halving("val_nll", "min", 27, 3, 3)
RUNGS = len(HALVING.rungs)

Rungs = list[dict[int, dict[int, float]]]


def true_means(rng: np.random.Generator, trials: int) -> NDArray[np.float64]:
    """Draw the means over all seeds at every rung, [trials, rungs], on a logarithmic scale."""
    first = 0.4 * rng.standard_t(5, trials)
    steps = 0.15 * rng.standard_normal((trials, RUNGS - 1))
    return np.column_stack([first, first[:, None] * [0.9, 0.8] - [0.5, 0.8] + steps.cumsum(axis=1)])


def measured(
    rng: np.random.Generator, means: NDArray[np.float64], spread: NDArray[np.float64], seeds: int
) -> NDArray[np.float64]:
    """Draw what seeds measure, [seeds, trials, rungs]: lucky ones stay lucky by half."""
    luck = rng.standard_normal((seeds, len(means), 1))
    own = rng.standard_normal((seeds, *means.shape))
    return np.asarray(np.exp(means + spread[:, None] * (np.sqrt(0.5) * luck + np.sqrt(0.5) * own)))


def course(rng: np.random.Generator, values: NDArray[np.float64]) -> tuple[Mapping[int, int], Rungs]:
    """Return how far each trial came in a random order, and what was seen."""
    trials = values.shape[1]
    reached = simulate_sweep(HALVING, rng.permutation(trials).tolist(), values.mean(axis=0), np.ones(trials), 4).reached
    seen = [
        {t: dict(enumerate(values[:, t, rung].tolist())) for t in range(trials) if reached[t] >= rung}
        for rung in range(RUNGS)
    ]
    return reached, seen


def test_chances_are_calibrated_on_average_over_stops() -> None:
    """Naive reference: sweeps with other seeds and orders, from the truth that the method does not see."""
    rng = np.random.default_rng(3)
    predicted, observed = [], []
    for _ in range(12):
        means, spread = true_means(rng, 24), np.exp(rng.normal(-1.6, 0.4, 24))
        reached, seen = course(rng, measured(rng, means, spread, 2))
        found = chances([(HALVING, range(24))], seen)
        again = [course(rng, measured(rng, means, spread, 2))[0] for _ in range(40)]
        for trial in (each for each in range(24) if reached[each] < RUNGS - 1):
            predicted.append(found[trial].finishes)
            observed.append(np.mean([each[trial] == RUNGS - 1 for each in again]))
    p, y = np.array(predicted), np.array(observed)
    assert len(p) > 150
    assert abs(p.mean() - y.mean()) < 0.03
    assert np.corrcoef(p, y)[0, 1] > 0.6
    fragile = p > np.quantile(p, 0.8)
    assert abs(p[fragile].mean() - y[fragile].mean()) < 0.08


def far_apart(trials: int, seeds: int = 2) -> Rungs:
    """Return trials that seeds never swap: trial t has the t-th smallest value."""
    rng = np.random.default_rng(0)
    values = np.exp(np.arange(trials)[None, :, None] + 0.01 * rng.standard_normal((seeds, trials, RUNGS)))
    return course(rng, values)[1]


def test_only_the_order_can_save_a_trial_that_is_far_behind() -> None:
    found = chances([(HALVING, range(12))], far_apart(12))
    assert found[0].finishes == 1 and found[0].wins > 0.99
    # the worst continues where it comes first at every rung, which is 1 in 12 orders at the first of them alone
    assert 0 < found[11].finishes < 0.12 and found[11].wins == 0


def test_a_trial_alone_in_its_stratum_always_finishes() -> None:
    found = chances([(HALVING, range(11)), (HALVING, [11])], far_apart(12))
    assert found[11].finishes == 1 and found[11].wins == 0


def test_without_a_spread_nothing_is_said() -> None:
    assert chances([(HALVING, range(6))], far_apart(6, seeds=1)) == {}
    assert chances([(HALVING, [0])], [{0: {1: 0.5, 2: 0.6}}, {}, {}]) == {}
    assert chances([], []) == {}


def test_trials_with_one_seed_borrow_the_others_spread() -> None:
    seen = far_apart(12)
    seen[0][11] = {0: seen[0][11][0]}
    assert 0 < chances([(HALVING, range(12))], seen)[11].finishes < 0.2


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("written", [{}, {"variant": "promotion"}, {"name": "median_stopping"}], ids=str)
def test_any_scheduler_that_compares_is_played(written: dict[str, str], mode: Literal["min", "max"]) -> None:
    settings = {"name": "asha", "max_epochs": 27, "grace_epochs": 3, **written}
    scheduler = SchedulerSettings.model_validate(settings).built("val_accuracy", mode)
    ordered = far_apart(12)
    sign = 1 if mode == "min" else -1  # of negative values no logarithm is taken
    seen = [{t: {s: sign * v for s, v in each.items()} for t, each in rung.items()} for rung in ordered]
    seen += [{} for _ in scheduler.rungs[len(seen) :]]
    found = chances([(scheduler, range(12))], seen[: len(scheduler.rungs)])
    assert found[0].finishes > 0.7 > 0.35 > found[11].finishes


def test_large_sweeps_are_played_less_often() -> None:
    count = MOST_VISITS // FEWEST_DRAWS + 100
    rng = np.random.default_rng(1)
    first = {t: {0: v, 1: v * 1.01} for t, v in enumerate(np.exp(rng.standard_normal(count)).tolist())}
    found = other_seeds(HALVING, [first, {}, {}])
    assert found.shape == (FEWEST_DRAWS, count, RUNGS) and np.isfinite(found).all()
