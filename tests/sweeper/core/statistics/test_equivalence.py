"""Verdicts on differences: their variance against a bootstrap, errors and promises by simulation."""

import numpy as np
import pytest
from scipy import stats

from sweeper.core.statistics.equivalence import (
    HIGHER,
    LOWER,
    NO_DIFFERENCE,
    OPEN,
    Pair,
    Samples,
    equivalence,
    equivalences,
    of_one_network,
    sample_parts,
)
from sweeper.results.estimators import Scored, measured
from trainables.metrics.base import softmax64

GROUPS = 20


def table(rng: np.random.Generator, seeds: int, samples: int, mean: float = 0.0) -> np.ndarray:
    """Return a difference of every seed on every sample: seeds' luck, samples' difficulty, and both together."""
    luck, difficulty = rng.normal(0, 0.02, (seeds, 1)), rng.normal(0, 0.8, (1, samples))
    return mean + luck + difficulty + rng.normal(0, 0.4, (seeds, samples))


def left_out(differences: np.ndarray) -> np.ndarray:
    group = np.arange(differences.shape[1]) % GROUPS
    return np.stack([differences[:, group != g].mean(axis=1) for g in range(GROUPS)])


def test_the_variance_is_that_of_a_bootstrap_over_seeds_and_samples() -> None:
    """Of a mean, the naive bootstrap of both (Owen 2007) counts what each seed has of its own three times."""
    rng, ours, naive = np.random.default_rng(0), [], []
    for _ in range(12):
        differences = table(rng, 30, 400)
        parts = sample_parts(left_out(differences))
        ours.append(differences.mean(axis=1).var(ddof=1) / 30 + parts.common + 2 * parts.own / 30)
        naive.append(
            np.var([differences[rng.integers(0, 30, 30)][:, rng.integers(0, 400, 400)].mean() for _ in range(400)])
        )
    assert np.mean(ours) == pytest.approx(np.mean(naive), rel=0.12)


def test_the_parts_are_those_that_were_drawn() -> None:
    rng = np.random.default_rng(1)
    parts = [sample_parts(left_out(table(rng, 6, 500))) for _ in range(60)]
    assert np.mean([each.common for each in parts]) == pytest.approx(0.8**2 / 500, rel=0.15)
    assert np.mean([each.own for each in parts]) == pytest.approx(0.4**2 / 500, rel=0.1)
    assert sample_parts(left_out(table(rng, 1, 500))).own == 0


def test_one_pair_without_samples_has_students_interval() -> None:
    b = np.random.default_rng(2).normal(0.3, 1.0, 12)
    verdict = equivalence(Pair(dict.fromkeys(range(12), 0.0), dict(enumerate(b.tolist()))), margin=0.0)
    assert verdict.interval == pytest.approx(stats.t.interval(0.95, 11, b.mean(), stats.sem(b)), abs=0.03)
    nearer = stats.t.interval(0.90, 11, b.mean(), stats.sem(b))
    assert verdict.largest == pytest.approx(max(map(abs, nearer)), abs=0.03)


@pytest.mark.parametrize(
    ("mean", "deviation", "margin", "code"),
    [
        (-0.03, 0.002, 0.01, LOWER),
        (0.03, 0.002, 0.01, HIGHER),
        (0.002, 0.001, 0.01, NO_DIFFERENCE),
        (0.0, 0.1, 0.01, OPEN),
    ],
)
def test_codes(mean: float, deviation: float, margin: float, code: str) -> None:
    away = np.array([-1.0, 0.2, 0.9, -0.5, 0.4]) * deviation
    verdict = equivalence(Pair(dict.fromkeys(range(5), 0.5), dict(enumerate((0.5 + mean + away).tolist()))), margin)
    assert verdict.code == code and verdict.seeds == 5
    assert (verdict.limited_by == "") == (code != OPEN)
    assert verdict.largest >= abs(verdict.estimate)


def test_swapping_sides_swaps_the_verdict() -> None:
    rng = np.random.default_rng(3)
    a, b = (dict(enumerate(rng.normal(mean, 0.003, 4).tolist())) for mean in (0.1, 0.07))
    one, other = equivalence(Pair(a, b), 0.001), equivalence(Pair(b, a), 0.001)
    assert one is not None and other is not None and {one.code, other.code} == {LOWER, HIGHER}
    assert one.interval == pytest.approx([-end for end in other.interval[::-1]])


def test_what_limits_is_what_helps() -> None:
    few_samples = equivalence(
        Pair(dict.fromkeys(range(8), 0.0), {s: 0.04 + 0.0004 * s for s in range(8)}, Samples(5e-4, 0), 300), 0.005
    )
    few_seeds = equivalence(
        Pair(dict.fromkeys(range(3), 0.0), {s: 0.02 * s + 0.01 for s in range(3)}, Samples(1e-8, 0), 300), 0.005
    )
    assert few_samples.code == few_seeds.code == OPEN
    assert (
        few_samples.limited_by == "samples" and few_samples.more_samples is not None and few_samples.more_seeds is None
    )
    assert few_seeds.limited_by == "seeds" and few_seeds.more_seeds is not None and few_seeds.more_samples is None


def test_rows_of_one_table_share_their_spread() -> None:
    rng = np.random.default_rng(5)
    pairs = [Pair({0: 0.0, 1: 0.0}, dict(enumerate(rng.normal(0.03, 0.006, 2).tolist()))) for _ in range(8)]
    together, alone = equivalences(pairs, 0.01), [equivalence(pair, 0.01) for pair in pairs]
    assert all(v is not None and v.code == HIGHER for v in together)
    assert sum(v is not None and v.code == OPEN for v in alone) >= 3


def test_without_common_seeds_or_spread_there_is_no_verdict() -> None:
    assert equivalences([], 0.01) == []
    assert equivalence(Pair({0: 1.0}, {1: 1.0}), 0.01) is None
    assert equivalence(Pair({0: 1.0}, {0: 2.0}), 0.01) is None
    one, none = equivalences([Pair({0: 0.0, 1: 0.0}, {0: 0.1, 1: 0.2}), Pair({0: 0.0}, {3: 0.0})], 0.01)
    assert one is not None and none is None


@pytest.mark.parametrize("seeds", [3, 6])
def test_verdicts_are_rarely_wrong(seeds: int) -> None:
    """Of six rows with unequal spreads and common test samples: true differences of 0, the margin and four times it."""
    rng, margin, wrong, judged = np.random.default_rng(seeds), 0.02, 0, 0
    truths = np.array([0.0, 1.01, -1.01, 2, -2, 0.0]) * margin
    for _ in range(40):
        spread, difficulty = 0.008 * np.exp(0.4 * rng.normal(size=(6, 1))), rng.normal(0, 0.006, (6, 1))
        values = truths[:, None] + difficulty + spread * rng.normal(size=(6, seeds))
        parts = Samples(0.006**2, 0.0)
        rows = [Pair(dict.fromkeys(range(seeds), 0.0), dict(enumerate(row.tolist())), parts) for row in values]
        for truth, verdict in zip(truths, equivalences(rows, margin), strict=True):
            judged += 1
            wrong += (
                (verdict.code == NO_DIFFERENCE and abs(truth) > margin)
                or (verdict.code == LOWER and truth >= 0)
                or (verdict.code == HIGHER and truth <= 0)
            )
    assert wrong / judged <= 0.05


@pytest.mark.slow
def test_so_many_more_seeds_decide_in_four_of_five() -> None:
    """200 sweeps of six rows, three seeds each; an open row gets the seeds that it was told, and is judged again."""
    rng, decided, asked = np.random.default_rng(7), 0, 0
    for _ in range(200):
        truths, spread = rng.normal(0, 0.03, 6), 0.01 * np.exp(0.4 * rng.normal(size=6))
        luck = truths[:, None] + spread[:, None] * rng.normal(size=(6, 80))
        bias = rng.normal(0, 0.002, 6)

        def rows(seeds: list[int], luck: np.ndarray = luck, bias: np.ndarray = bias) -> list[Pair]:
            return [
                Pair(
                    dict.fromkeys(range(n), 0.0),
                    dict(enumerate((bias[i] + luck[i, :n]).tolist())),
                    Samples(0.002**2, 0.0),
                )
                for i, n in enumerate(seeds)
            ]

        first = equivalences(rows([3] * 6), 0.01)
        open_rows = [(i, v) for i, v in enumerate(first) if v is not None and v.more_seeds is not None]
        for i, verdict in open_rows[:1]:
            seeds = [3] * 6
            seeds[i] += verdict.more_seeds
            later = equivalences(rows(seeds), 0.01)[i]
            asked += 1
            decided += later is not None and later.code != OPEN
    assert asked >= 60 and decided / asked >= 0.8, f"{decided} of {asked}"


def test_of_one_network_alone_the_interval_covers_what_other_test_samples_would_show() -> None:
    """The ECE of an overconfident network before and after a fixed temperature, over redrawn test sets."""
    rng = np.random.default_rng(0)
    changes, verdicts = [], []
    for _ in range(300):
        logits = rng.normal(0, 2, (600, 4))
        p = softmax64(logits)
        targets = (p.cumsum(axis=1) > rng.random((600, 1))).argmax(axis=1)
        sides = [Scored.of(softmax64(2 * logits), targets), Scored.of(p, targets)]
        found = measured("ECE, 15 bins", {0: sides[1]}, {0: sides[0]})
        changes.append(found.pair.differences[0])
        verdicts.append(of_one_network(found.pair, GROUPS, margin=0.0))
    missed = [not v.interval[0] <= np.mean(changes) <= v.interval[1] for v in verdicts]
    assert np.mean(missed) < 0.09  # 5 %; the standard error of 300 draws is 1.3 %
    assert np.mean([v.code == LOWER for v in verdicts]) > 0.9  # power: the change is about −0.10
    assert of_one_network(Pair({0: 0.0, 1: 0.0}, {0: 1.0, 1: 1.0}, Samples(1.0, 0.0)), GROUPS, 0.0) is None
