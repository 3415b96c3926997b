"""Estimators and what they say of a difference, on networks whose true order is known."""

from __future__ import annotations

import numpy as np
import pytest

from sweeper.judging.question import BETTER, OPEN, SAME, WORSE
from sweeper.results.estimators import ESTIMATORS, SHOWN, Judgement, Networks, Scored, judged
from tests.benchmarks.simulated_judge import ECE_CHANGE, PLAIN_CHANGE, simulate_ece
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import softmax64
from trainables.metrics.kernel import smooth_ece
from trainables.metrics.refinement import refinement

CLASSES = 5

Rng = np.random.Generator


def networks(
    rng: Rng, posterior: np.ndarray, targets: np.ndarray, sharpness: float, noise: float, seeds: int, luck: float = 0.1
) -> Networks:
    """Return networks whose logits are the true ones, sharpened, with errors of their own; seeds differ skewedly."""
    made = {}
    for seed in range(seeds):
        factor = sharpness * rng.lognormal(0, luck)
        logits = factor * (np.log(posterior) + noise * rng.normal(size=posterior.shape))
        made[seed] = Scored.of(softmax64(logits), targets, logits)
    return made


def drawn(rng: Rng, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return true posteriors [N, K] and targets [N] drawn from them."""
    posterior = rng.dirichlet(np.full(CLASSES, 0.4), size=samples) * 0.98 + 0.004
    targets = (posterior.cumsum(axis=1) > rng.random((samples, 1))).argmax(axis=1)
    return posterior, targets


def test_every_estimator_is_the_metric_of_its_name() -> None:
    rng = np.random.default_rng(0)
    posterior, targets = drawn(rng, 400)
    logits = np.log(posterior) * 1.7
    probabilities = softmax64(logits)
    scored = Scored.of(probabilities, targets, logits)
    whole = evaluate_probabilities(probabilities, targets, 15)
    expected = {
        **{f"ECE, {bins} bins": evaluate_probabilities(probabilities, targets, bins)["ece"] for bins in (10, 15, 20)},
        "equal-mass ECE, 15 bins": whole["ada_ece"],
        "smooth ECE": smooth_ece(probabilities, targets),
        "NLL": whole["nll"],
        "Brier": whole["brier"],
        "refinement NLL": refinement(logits, targets).nll,
    }
    assert {name: measure(scored) for name, measure in ESTIMATORS.items()} == pytest.approx(expected, rel=1e-12)


def judged_one(estimator: str, first: Networks, second: Networks, margin: float = 0.01, **alone: bool) -> Judgement:
    return judged(estimator, {"": (first, second)}, margin, **alone)[""]


def test_one_seed_decides_nothing_and_swapped_sides_turn_the_verdict() -> None:
    rng = np.random.default_rng(2)
    posterior, targets = drawn(rng, 3000)
    good, bad = (networks(rng, posterior, targets, sharpness, 0.05, 5) for sharpness in (1.0, 2.5))
    one, other = judged_one("NLL", good, bad), judged_one("NLL", bad, good)
    assert one.verdict is not None and other.verdict is not None
    assert (one.code, other.code) == (BETTER, WORSE) and one.means == other.means[::-1]
    assert one.verdict.estimate == -other.verdict.estimate == pytest.approx(one.means[0] - one.means[1])
    single = {0: good[0]}, {0: bad[0]}
    alone = judged_one("NLL", *single)
    assert alone.code == OPEN and alone.verdict is None
    samples = judged_one("NLL", *single, alone=True)
    assert samples.code == BETTER, "for this network, over test samples alone"


def test_networks_that_predict_almost_the_same_do_not_differ() -> None:
    rng = np.random.default_rng(3)
    posterior, targets = drawn(rng, 3000)
    first, second = (networks(rng, posterior, targets, 1.3, 0.02, 6, luck=0.01) for _ in range(2))
    assert judged_one(SHOWN, first, second).code == SAME
    assert judged_one(SHOWN, first, second, margin=1e-5).code != SAME


def test_seeds_without_a_partner_are_left_out_and_different_seeds_are_not_paired() -> None:
    rng = np.random.default_rng(4)
    posterior, targets = drawn(rng, 600)
    first, second = (networks(rng, posterior, targets, sharpness, 0.1, 4) for sharpness in (1.0, 1.5))
    shared = judged_one("NLL", {seed: first[seed] for seed in (0, 1, 2)}, second)
    assert shared.verdict is not None and shared.verdict.paired and {*shared.verdict.seeds} == {0, 1, 2}
    assert shared.means[1] == pytest.approx(np.mean([second[seed].nll.mean() for seed in (0, 1, 2)]))
    others = judged_one("NLL", first, {seed + 10: network for seed, network in second.items()})
    assert others.verdict is not None and not others.verdict.paired and len(others.verdict.seeds) == 8


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_at_most_one_verdict_in_twenty_is_wrong(together: bool) -> None:
    """200 comparisons of 40 pairs of configurations, five sets of seeds and samples each; 2 to 8 seeds, 400 samples."""
    rng = np.random.default_rng(3)
    names, counts = ("ECE, 15 bins", "equal-mass ECE, 15 bins", "Brier"), {code: [0, 0] for code in CODES}
    for _ in range(40):
        settings = [(float(rng.uniform(0.8, 1.8)), float(rng.uniform(0.05, 0.4))) for _ in range(4)]
        luck = float(rng.choice([0.05, 0.3]))
        truth = population(settings, names, luck)
        for _ in range(5):
            seeds = int(rng.integers(2, 9))
            posterior, targets = drawn(rng, 400)
            sides = [networks(rng, posterior, targets, *each, seeds, luck) for each in settings]
            for name in names:
                rows = {str(at): (sides[0], side) for at, side in enumerate(sides[1:])}
                pool = [rows] if together else [{at: row} for at, row in rows.items()]
                found = [one for part in pool for one in judged(name, part, MARGIN).values()]
                for one, difference in zip(found, truth[name], strict=True):
                    counts[one.code][0] += 1
                    counts[one.code][1] += not holds(one.code, difference)
    print(counts)
    said = sum(counts[code][0] for code in (BETTER, WORSE, SAME))
    assert said > 200
    assert sum(wrong for _, wrong in counts.values()) <= 0.05 * said


CODES, MARGIN = (BETTER, WORSE, SAME, OPEN), 0.01


def holds(code: str, difference: float) -> bool:
    """Return whether a verdict holds of the true difference."""
    return {BETTER: difference < 0, WORSE: difference > 0, SAME: abs(difference) <= MARGIN, OPEN: True}[code]


def population(settings: list[tuple[float, float]], names: tuple[str, ...], luck: float) -> dict[str, list[float]]:
    """Return the true differences of the first from the others, of 20 networks on 30,000 samples."""
    rng = np.random.default_rng(4)
    posterior, targets = drawn(rng, 30_000)
    sides = [networks(rng, posterior, targets, *each, 20, luck) for each in settings]
    means = [
        {name: float(np.mean([ESTIMATORS[name](one) for one in side.values()])) for name in names} for side in sides
    ]
    return {name: [means[0][name] - other[name] for other in means[1:]] for name in names}


def test_the_interval_of_a_change_of_ece_covers_that_of_all_samples() -> None:
    rows = [row for sharpness in (2.0, 0.6) for row in simulate_ece(10, sharpness, 1000, 60)]
    covered, plain = ([row for row in rows if row.statement == name] for name in (ECE_CHANGE, PLAIN_CHANGE))
    assert all(row.rate <= 0.05 and row.power == 1.0 for row in covered)
    assert all(row.rate > 0.1 for row in plain), "without the bias of binning, the intervals miss it"
